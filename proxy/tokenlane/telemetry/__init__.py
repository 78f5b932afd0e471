"""What the gateway says about itself: metrics, load board, heartbeat, logs."""
