#!/usr/bin/env python3
"""The third form of `shoal` in plain numpy: the trial that its terms and numbers were chosen
with (docs/notebook/shoal3.md). shoal2.py has the second form, of which this one keeps the
clusters, pools and exact keys.

    shoal3.py FOLDER SETTING... [--layers 0 1] [--heads 0 1] [--rows 256] [--length 4096] [--each]

Prints the relative L2 error against full attention and the centred error
|e - mean e| / |o - mean o|, both the mean over layers, and by layer; --each: of every head.
A SETTING is option=value,... of these, after the second form's functions of sizes:

    form      2, or 3 with second-order mass and the dipole of the values
    topk      exact keys of a block: one number, or a/b/c for tau < .25, < .5, above
    keyclusters, groups, rank, pool, block, near, seed
    omega     what keys are weighted by in covariances: cluster, flat, mean
    power     of omega
    mass      of the dipole: gross, net (without near keys)
"""
import argparse
from dataclasses import replace

import numpy as np

import shoal2


def defaults(N, S, D):
    C = 8 if N < 1024 else 16 if N < 8192 else 24 if N < 16384 else 32
    topk = 96 if N < 1024 else 112
    block = 24 if N < 8192 else 48
    points = 8 if N < 4096 else 4 if N < 8192 else 2 if N < 16384 else 1
    near = 0 if N != S else min(8, N // 180) if N < 8192 else 4
    pool = 160 if S < 1024 else 384 if S < 8192 else 768
    o = shoal2.Options(groups=C, keyclusters=min(24, max(8, S // 480 * 8)), topk=topk, block=block,
                       points=points, pool=max(pool, 2 * topk), near=near, rank=max(1, min(16, D // 4)))
    return o, {"form": "3", "omega": "cluster", "power": "0.7", "mass": "gross", "topk": None, "second": "1",
               "dipole": "1", "sigma": "block"}


def parse(text, N, S, D):
    o, more = defaults(N, S, D)
    for part in filter(None, text.split(",")):
        name, value = part.split("=")
        if name in more:
            more[name] = value
        else:
            o = replace(o, **{name: type(getattr(o, name))(value)})
    return o, more


def cluster_sums(x, order, starts, sizes, count):
    out = np.zeros((count, x.shape[1]), x.dtype)
    there = np.flatnonzero(sizes)
    out[there] = np.add.reduceat(x[order], starts[there])
    return out


def centroid_rows(q, k, scale, o, P, Z, centre):
    """Softmax of every centroid [C][S], spread [C][S], sizes [C]."""
    y = q @ P - (q @ P).mean(0)
    z = scale * ((k - centre) @ Z)
    group, C = shoal2.kmeans(y, o.groups, o.iterations, o.seed)
    c, sizes = shoal2.means(q, group, C)
    ymean = shoal2.means(y, group, C)[0]
    var = shoal2.means((y - ymean[group]) ** 2, group, C)[0]
    s = scale * (c @ k.T)
    p = np.exp(s - s.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    return s, p, var @ (z * z).T, sizes, group, C, z, c


def cluster_sigma(how, s, spread, w, mass, m, o, M):
    """What is left of the key clusters for the centroid, without its likeliest exact keys."""
    if how == "all":
        return mass
    by = s + spread / 2
    T = shoal2.largest(by, int(o.topk * float(how)))
    return np.maximum(mass - np.bincount(m[T], w[T], M), 1e-6 * mass)


def attend(q, k, v, scale, text, wanted=None, info=None):
    N, S = len(q), len(k)
    o, more = parse(text, N, S, q.shape[1])
    P, Z, centre = shoal2.metric(q, k, min(o.rank, q.shape[1]))
    s, p, spread, sizes, group, C, z, c = centroid_rows(q, k, scale, o, P, Z, centre)
    top64 = -np.partition(-p, min(64, S) - 1, 1)[:, :64]
    tau = float((sizes / N * top64.sum(1)).sum())
    if more["topk"]:
        numbers = [int(a) for a in more["topk"].split("/")]
        topk = numbers[0] if len(numbers) == 1 or tau < .25 else numbers[1] if tau < .5 else numbers[2]
        o = replace(o, topk=topk, pool=max(o.pool, 2 * max(numbers)))
    ch = shoal2.choose(q, k, v, scale, o, wanted)
    m, M, r, Dv = ch.cluster, ch.M, P.shape[1], v.shape[1]
    order = np.argsort(m, kind="stable")
    counts = np.bincount(m, minlength=M)
    starts = np.cumsum(counts) - counts
    third = more["form"] == "3"
    # omega, var [M][r], Cov [M][r][Dv]
    if more["omega"] == "cluster":
        e = s + spread / 2
        cut = -np.partition(-e, min(o.topk, S) - 1, 1)[:, min(o.topk, S) - 1]
        omega = ((sizes / N)[:, None] * np.where(e >= cut[:, None], 0, p)).sum(0)
    elif more["omega"] == "kept":     # without the exclusion
        omega = ((sizes / N)[:, None] * p).sum(0)
    elif more["omega"] == "clip":
        omega = ((sizes / N)[:, None] * np.minimum(p, 1 / o.topk)).sum(0)
    elif more["omega"] == "mean":
        a = scale * (k @ q.mean(0))
        omega = np.exp(a - a.max())
    elif more["omega"] == "geo":
        a = (sizes / N) @ s
        omega = np.exp(a - a.max())
    else:
        omega = np.ones(S)
    omega = np.maximum(omega.astype(np.float64), 1e-30) ** float(more["power"])
    omega = omega.astype(np.float32)[:, None]
    Om = np.maximum(cluster_sums(omega, order, starts, counts, M), 1e-30)
    zw = cluster_sums(omega * z, order, starts, counts, M) / Om
    vw = cluster_sums(omega * v, order, starts, counts, M) / Om
    zc, vc = z - zw[m], v - vw[m]
    var = cluster_sums(omega * zc * zc, order, starts, counts, M) / Om
    Cov = np.stack([(omega[order[a:a + n]] * zc[order[a:a + n]]).T @ vc[order[a:a + n]] / Om[i]
                    for i, (a, n) in enumerate(zip(starts, counts))])
    plain = shoal2.means(z, m, M)[0]
    wide = np.concatenate([v, z, np.ones((S, 1), q.dtype)], 1)
    out = np.zeros((N, Dv), q.dtype)
    sums = {}
    negative = []
    for j, members, X, exact, near, own in ch.blocks:
        if j not in sums:
            w = np.exp(s[j] - s[j].max())
            sums[j] = s[j], w, cluster_sums(w[:, None] * wide, order, starts, counts, M)
        sj, w, total = sums[j]
        left = total.astype(np.float64)
        np.subtract.at(left, m[X], w[X][:, None] * wide[X])
        remaining = counts - np.bincount(m[X], minlength=M)
        E = np.where(remaining > 0, np.maximum(left[:, -1], 1e-6 * total[:, -1]), 0)
        good = E > shoal2.LEAST * total[:, -1]
        zm = np.where(good[:, None], left[:, Dv:-1] / np.where(good, E, 1)[:, None], plain)
        mu = left[:, :Dv] / np.where(E > 0, E, 1)[:, None]
        mu[E <= 0] = 0
        x = q[members] - c[j]
        d = x @ P
        t = scale * (x @ centre)[:, None] + d @ zm.T
        u = np.where(good, 0.5 * (d * d) @ var.T, 0) if third and more["second"] == "1" else np.zeros_like(t)
        mine = scale * (q[members] @ k.T)
        base = sj.max()
        peak = np.maximum(mine.max(1), (t + base).max(1))[:, None]
        A = np.exp(t + base - peak) * E
        ex = np.where(exact, np.exp(mine - peak), 0)
        hid = np.where(exact, np.exp(sj + t[:, m] - peak), 0)
        hid[:, X] = 0
        num = (A * (1 + u)) @ mu + ex @ v - (hid * (1 + u[:, m])) @ v
        den = (A * (1 + u)).sum(1) + ex.sum(1) - (hid * (1 + u[:, m])).sum(1)
        if third and more["dipole"] == "1":
            if more["sigma"] == "block":
                sigma = (A / den[:, None]).sum(0)
            else:
                sigma = cluster_sigma(more["sigma"], sj, spread[j], w, total[:, -1], m, o, M)
            sigma = sigma / max(sigma.sum(), 1e-30)
            J = np.tensordot(sigma, Cov, 1)
            mass = A.sum(1) - (hid.sum(1) if more["mass"] == "net" else 0)
            num = num + mass[:, None] * (d @ J)
        out[members] = num / den[:, None]
    if info is not None:
        info.append((tau, o.topk, M))
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder")
    p.add_argument("settings", nargs="+")
    p.add_argument("--layers", type=int, nargs="+")
    p.add_argument("--heads", type=int, nargs="+")
    p.add_argument("--rows", type=int, default=0)
    p.add_argument("--length", type=int, default=0)
    p.add_argument("--each", action="store_true")
    a = p.parse_args()
    found = {}
    for layer, q, k, v, full, drawn in shoal2.heads_of(a.folder, a.layers, a.heads, a.rows, a.length):
        wanted = None if len(drawn) == len(q) else np.isin(np.arange(len(q)), drawn)
        scale = np.float32(1 / np.sqrt(q.shape[1]))
        for text in a.settings:
            info = []
            out = attend(q, k, v, scale, text, wanted, info)[drawn]
            e = (out - full).astype(np.float64)
            f = full.astype(np.float64)
            sums = [(e ** 2).sum(), (f ** 2).sum(), ((e - e.mean(0)) ** 2).sum(), ((f - f.mean(0)) ** 2).sum()]
            found.setdefault((text, layer), []).append((sums, info[0]))
    for text in a.settings:
        plain, centred = [], []
        for layer in sorted(l for t, l in found if t == text):
            heads = np.array([f[0] for f in found[text, layer]])
            plain.append(np.sqrt(heads[:, 0].sum() / heads[:, 1].sum()))
            centred.append(np.sqrt(heads[:, 2].sum() / heads[:, 3].sum()))
            if a.each:
                print(f"  layer {layer}:", " ".join(f"{np.sqrt(h[0]/h[1]):.4f}/{np.sqrt(h[2]/h[3]):.3f}(t{f[1][0]:.2f},k{f[1][1]})"
                      for h, f in zip(heads, found[text, layer])))
        print(f"{np.mean(plain):.4f} centred {np.mean(centred):.4f}  {text:40s}", " ".join(f"{x:.4f}" for x in plain),
              "|", " ".join(f"{x:.3f}" for x in centred), flush=True)


if __name__ == "__main__":
    main()
