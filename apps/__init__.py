"""The served dashboard: thin viewers over ``param`` state classes. It decides nothing and computes nothing.

``server`` starts it, ``shell`` is the frame around the pages, ``pages/`` holds one file per instrument, ``states/`` the state
behind each page (no Panel import, tested without a browser), ``jobs`` the runner that keeps long work off the event loop.
"""
