import numpy as np

def run(seed=42, budget_s=5, **kwargs):
    h = [⟦0.1, 0.3, 0.5, 0.8, 0.9, 0.9, 0.8, 0.5, 0.3, 0.1⟧]
    h = np.array(h)
    h = h * (len(h) / 2) / h.sum()
    return h, np.correlate(h, 1 - h, "full").max() * 2 / len(h), len(h)
