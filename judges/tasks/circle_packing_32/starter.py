import numpy as np
from scipy.optimize import linprog

def run_packing():
    w = [⟦1.0, 0.5, 1.4, 0.7, 1.2, 0.4, 0.9, 1.5⟧]
    w = np.abs(np.resize(w, 32)) + 0.01
    rows = np.split(w, [5, 11, 16, 22, 27])
    height = np.array([row.mean() for row in rows])
    x = np.concatenate([(np.cumsum(row) - row / 2) / row.sum() for row in rows])
    y = np.repeat((np.cumsum(height) - height / 2) / height.sum(), [len(row) for row in rows])
    i, j = np.triu_indices(32, 1)
    apart = np.zeros((len(i), 32))
    apart[range(len(i)), i] = apart[range(len(i)), j] = 1
    wall = np.min([x, 1 - x, y, 1 - y], axis=0)
    r = linprog(-np.ones(32), apart, np.hypot(x[i] - x[j], y[i] - y[j]), bounds=np.c_[0 * wall, wall]).x
    r = np.maximum(r - 1e-7, 0)
    return np.c_[x, y], r, r.sum()
