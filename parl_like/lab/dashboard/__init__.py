"""The dashboard: a local page that shows runs, live and finished. It reads run directories only.

`server.py` has the addresses, `guard.py` who may ask, `board.py` what is answered, and `static/` the page.
"""
