"""The HTTP door: translates requests into calls of `lifecycle`, `admission` and plain edits, and rows into JSON.

query, shapes, fields   what comes in: strict, bounded, snake_case or its camelCase twin
run_object, renderers   what goes out: rows become objects, keys get their twins, in one place each
*_views                 one file a resource; every view is a `View` (view.py), which holds the conventions
"""
