"""Storage of the hot tables: room for HOT updates, and an autovacuum that keeps up with a queue's churn.

Without settings of its own the run table's throughput halves within half a minute of full load: the default scale
factor waits for a fifth of the table.
"""

from django.db import migrations

EAGER = "autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0"
NAMES = "autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold, autovacuum_vacuum_cost_delay, fillfactor"


class Migration(migrations.Migration):
    dependencies = [("workflows", "0001_initial")]

    operations = [
        migrations.RunSQL(
            f"ALTER TABLE {table} SET (fillfactor = {fillfactor}, {EAGER})", f"ALTER TABLE {table} RESET ({NAMES})"
        )
        for table, fillfactor in (("workflow_runs", 80), ("run_leases", 90))
    ]
