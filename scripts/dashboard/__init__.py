"""The Grafana dashboards as data: panels are declared once, JSON is written from them.

`make dashboards` (python -m scripts.dashboard) writes deploy/grafana; a test compares.
"""
