"""How late the loop is and why: heartbeat, watchdog, stage marks, and the verdict."""
