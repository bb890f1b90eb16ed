"""Real federations over Flower: ask, answer and take between machines, and no mathematics of its own.

    server   coordinator ─▶ exchange ─▶ arrivals        who is asked, who answered in time, what is fit to be taken
    wire     messages                                   a request and a reply as a few plain fields
    client   site ─▶ refusals, policy ─▶ kept_replies   the data holder: its file decides, its account pays

``flwr_calls`` is all that knows Flower's own functions, ``superlink`` runs inside Flower's server process.
"""
