"""Real federations over Flower: ask, answer and take between machines, and no mathematics of its own.

    server   coordinator, exchange        who is asked, who answered in time, what is fit to be taken
    wire     messages                     a request and a reply as a few plain fields
    client   site/: site, request_checks, policy   the data holder: its file decides, its account pays

``transport`` is all that knows Flower's own functions, ``superlink`` runs inside Flower's server process.
"""
