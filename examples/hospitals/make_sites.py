"""Write three hospitals' exports, each into a folder of its own: python make_sites.py"""

from datetime import date, timedelta
from pathlib import Path

import numpy as np

rng = np.random.default_rng(0)
for k, site in enumerate(["bern", "lyon", "oslo"]):
    rows = ["patient,age,sex,admitted,creatinine,diagnosis"]
    for i in range(1000 + 200 * k):
        age, creatinine = rng.integers(20, 90), rng.lognormal(4.5, 0.4)
        ill = (age - 55) / 20 + (creatinine - 95) / 40 + rng.normal(0, 0.5) > 0
        day = date(2019, 1, 1) + timedelta(int(rng.integers(0, 1400)))
        rows.append(f"p{k}-{i},{age if i % 19 else ''},{'fm'[i % 2]},{day},{creatinine:.1f},{'ill' if ill else 'well'}")
    Path(site).mkdir(exist_ok=True)
    Path(site, "site.csv").write_text("\n".join(rows) + "\n")
