"""The dispatcher: queued -> dispatched, and recovery of what nobody claims or keeps alive."""
