"""What child processes of one machine need: their life, how often they may be restarted, and memory that they share."""
