#!/usr/bin/env python3
"""The second generation of `shoal`, in plain numpy: the specification of the C code, and the
trial that its options were chosen with (docs/notebook/shoal2.md).

    shoal2.py error FOLDER SETTING... [--seeds 3] [--layers 0 1] [--heads 0 1] [--rows 256]
    shoal2.py cost N S D SETTING...
    shoal2.py check

error  relative L2 error against full attention on a folder of layerL_{q,k,v}.npy, mean over
       the layers and of each; and multiply-adds relative to --base (today's shoal-100)
cost   multiply-adds of one head, part by part
check  finite differences of the backward pass in double precision; sums as the C code forms
       them against rows; the edge rules

A SETTING is spelled like the library's kinds, and what it does not say follows from C, N, S
and D (function `recommended`):
    shoal              the recommended number of groups and options
    shoal-32           32 groups
    shoal-32:topk=80   ... and 80 exact keys for every block
    first-100:topk=64  the first generation: no tilt, no blocks, no near keys
    D-64:topk=48       one set of exact keys for a group, tilted rest, near keys
    W-32:topk=32,own=16,pool=384   own keys for every query

Symbols: N queries, S keys, D and Dv features, C groups j, M key clusters m, r rank, i a query,
l a key, b a block of members of one group. Shapes are in brackets."""
import argparse
import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Options:
    groups: int = 32        # C
    keyclusters: int = 32   # M; 0: the rest does not follow the query
    topk: int = 64          # exact keys of a block, or of a group where block = 0
    block: int = 16         # members that share exact keys; 0: the whole group
    points: int = 8         # means of neighbouring members that speak for a block
    pool: int = 192         # keys of a group that its blocks (or queries) choose from
    own: int = 0            # exact keys of every query besides (variant W)
    near: int = 8           # positions on either side that are exact; 0: none, not even i
    rank: int = 16          # r
    iterations: int = 6     # of k-means, queries and keys
    seed: int = 1
    # What was compared; the first is what the C code does.
    centre: str = "weighted"    # a key cluster's z: weighted by the centroid's rest, or plain
    tilt: str = "rank"          # t from z [r], or from mean keys [D]: "mean"
    choose: str = "share"       # see block_scores
    poolby: str = "expected"    # expected, spread, score
    groupby: str = "score"      # ranks the group's keys (block = 0): score, spread, expected, both
    cut: str = "bisect"         # how a group is cut into blocks: bisect, kmeans
    band: int = 1               # positions that share their near keys
    hide: str = "exact"         # what near keys take from the rest: exact or rank (low rank)
    threshold: int = 0          # own keys by one threshold for a group
    fill: int = 0               # METHOD.md's step 7


def recommended(N, S, D, C=None):
    """The options of `shoal-C`; of `shoal` where C is None. Measured in
    docs/notebook/shoal2.md, never timed at run time."""
    if C is None:
        C = min(32, max(8, N // 32 // 4 * 4))
    block = 8 if N < 1024 else 16
    points = block // 2 if N < 4096 else 4 if N < 8192 else 2 if N < 16384 else 1
    topk = (40 + 5 * C // 4 + 3) // 4 * 4 if N < 8192 else 32 + C
    pool = 128 if S < 1024 else 256 if S < 4096 else 512 if S < 8192 else 1024 if S < 16384 else 1536
    return Options(groups=C, keyclusters=min(C, max(8, S // 320 * 8)), topk=topk, block=block,
                   points=points, pool=max(pool, 2 * topk), near=min(8, N // 180),
                   rank=min(16, max(1, D // 4)))


def parse(text, N, S, D):
    found = re.fullmatch(r"(shoal|first|D|W)(?:-(\d+))?(?::(.*))?", text)
    if not found:
        raise SystemExit(f"{text}: shoal, shoal-32, first-100, D-64 or W-32, then :option=value,...")
    kind, C, rest = found.groups()
    o = recommended(N, S, D, int(C) if C else None)
    if kind == "first":
        o = replace(o, keyclusters=0, block=0, pool=0, near=0, topk=64, rank=16)
    elif kind == "D":
        o = replace(o, block=0, pool=0, centre="plain", rank=16, topk=48, keyclusters=32)
    elif kind == "W":
        o = replace(o, block=0, pool=384, own=16, topk=32, rank=16, centre="plain",
                    poolby="spread", keyclusters=32)
    for part in filter(None, (rest or "").split(",")):
        name, value = part.split("=")
        o = replace(o, **{name: type(getattr(o, name))(value)})
    return o


# ---- Step 1: the metric ----------------------------------------------------------------

def sampled(x, rows=256):
    """At most `rows` rows of x [n][D], evenly spaced."""
    take = min(len(x), rows)
    return x[np.arange(take) * len(x) // take].astype(np.float64)


def metric(q, k, rank):
    """P [D][r], Z [D][r] and k's centre [D]: constants of the call.

    With covariances Ck = RR' and Cq: B are the leading eigenvectors of R' Cq R and P = RB.
    Z is the least-squares dual, Z' = (P'CqP)^-1 P'Cq, so that y.z is as near to q.k as r
    numbers allow; for exact eigenvectors it is R'^-1 B, but nothing of size D is inverted."""
    ks, qs = sampled(k), sampled(q)
    centre = ks.mean(0)
    ck = (ks - centre).T @ (ks - centre) / len(ks)
    cq = (qs - qs.mean(0)).T @ (qs - qs.mean(0)) / len(qs)
    w, e = np.linalg.eigh(ck)
    root = e * np.sqrt(np.maximum(w, 0))
    P = root @ np.linalg.eigh(root.T @ cq @ root)[1][:, ::-1][:, :rank]
    a = P.T @ cq @ P
    ridge = 1e-6 * np.trace(a) / rank + 1e-30
    Z = np.linalg.solve(a + ridge * np.eye(rank), P.T @ cq).T
    return P.astype(q.dtype), Z.astype(q.dtype), centre.astype(q.dtype)


# ---- k-means, as src/cluster/lloyd.c does it --------------------------------------------

def nearest(x, centres):
    return np.argmax(x @ centres.T - 0.5 * (centres * centres).sum(1), 1).astype(np.int32)


def start(points, count, rng):
    """k-means++ in about 16 rounds: centres [<= count][r], fewer where points repeat."""
    centres = points[rng.integers(len(points))][None]
    square = (points * points).sum(1)
    distance = ((points - centres[0]) ** 2).sum(1)
    batch = -(-(-(-count // 16)) // 4) * 4
    while len(centres) < count and distance.sum() > 1e-12 * square.sum():
        wanted = min(batch, count - len(centres))
        marks = (np.arange(wanted) + rng.random(wanted)) / wanted * distance.sum()
        drawn = np.unique(np.minimum(np.searchsorted(np.cumsum(distance), marks), len(points) - 1))
        fresh = points[drawn]
        centres = np.concatenate([centres, fresh])
        to = square[:, None] - 2 * points @ fresh.T + (fresh * fresh).sum(1)
        distance = np.minimum(distance, np.maximum(0, to).min(1))
    return centres


def kmeans(x, count, iterations, seed):
    """x [n][r] -> the cluster of each [n], and how many there are."""
    n, rng = len(x), np.random.default_rng(seed)
    if n <= count:
        return np.arange(n, dtype=np.int32), n
    size = min(n, max(4096, 32 * count))
    points = x[np.arange(size) * n // size]
    points = np.concatenate([points[::2], points[1::2]])
    half = (size // 2 + 47) // 48 * 48
    if size < 1024 or half < count:
        half = size
    centres = start(points[:half], count, rng)
    part = points[:half]
    for step in range(1, iterations):
        who = nearest(part, centres)
        mean, sizes = means(part, who, len(centres))
        centres = np.where(sizes[:, None] > 0, mean, centres)
        last = step == iterations - 1
        part = points if last else points[half:] if step % 2 and half < size else points[:half]
    return nearest(x, centres), len(centres)


def means(x, who, count):
    """Mean of the rows of each cluster [count][..] and their numbers [count]."""
    sizes = np.bincount(who, minlength=count)
    out = np.zeros((count, x.shape[1]), x.dtype)
    there = np.flatnonzero(sizes)
    starts = (np.cumsum(sizes) - sizes)[there]
    out[there] = np.add.reduceat(x[np.argsort(who, kind="stable")], starts) / sizes[there][:, None]
    return out, sizes


def largest(score, k):
    k = min(k, score.shape[-1])
    if k <= 0:
        return np.zeros(score.shape[:-1] + (0,), np.int64)
    return np.argpartition(-score, k - 1, axis=-1)[..., :k]


def ordered(y, members, leaf):
    """Members so that alike ones follow each other: halved again and again, along the
    direction between the halves' means; the first halves are by the widest coordinate."""
    if len(members) <= leaf:
        return members
    x = y[members] - y[members].mean(0)
    along = x[:, np.argmax(x.var(0))]
    left = max(1, round(len(members) / 2 / leaf)) * leaf
    left = left if left < len(members) else len(members) // 2
    for _ in range(HALVINGS):
        by = np.argsort(along, kind="stable")
        along = x @ (x[by[left:]].mean(0) - x[by[:left]].mean(0))
    by = members[np.argsort(along, kind="stable")]
    return np.concatenate([ordered(y, by[:left], leaf), ordered(y, by[left:], leaf)])


HALVINGS = 3    # 0: by the widest coordinate alone


# ---- What is chosen: constants of the backward pass ---------------------------------------

@dataclass
class Choice:
    P: np.ndarray       # [D][r]
    Z: np.ndarray       # [D][r]
    centre: np.ndarray  # [D]
    group: np.ndarray   # [N]
    C: int
    cluster: np.ndarray  # [S], all 0 where M = 0
    M: int
    blocks: list        # of (group, members [n], exact keys X [kappa], exact [n][S] or None)


def block_scores(o, s, z, zbar, y, mass, residual):
    """How much a key of the pool [p] would miss if a block did without it.

    s [p] the centroid's scores, z [p][r], zbar [p][r] the key's cluster's, y [n][r] the
    members less their group's mean, mass = (log of each cluster's sum [M], its z [M][r])."""
    mean = y.mean(0)
    if o.choose == "mean":      # the block's mean query
        return s + z @ mean
    if o.choose == "residual":  # and a Gaussian's second moment, times what the tilt misses
        return (s + z @ mean + 0.5 * (z * z) @ y.var(0)
                + 0.5 * np.log((z - zbar) ** 2 @ (y.var(0) + mean ** 2) + 1e-6))
    each = max(1, o.block // o.points)
    points = np.stack([y[a:a + each].mean(0) for a in range(0, len(y), each)])
    a = s + points @ z.T                                        # [points][p]
    t = points @ mass[1].T + mass[0]
    norm = np.log(np.exp(t - t.max(1, keepdims=True)).sum(1)) + t.max(1)
    norm = np.maximum(norm, a.max(1))[:, None]
    if o.choose == "error":     # root mean square of the weight's error
        tilted = s + points @ zbar.T
        return ((np.exp(a - norm) - np.exp(np.minimum(tilted - norm, 20))) ** 2).mean(0)
    share = (a - norm).max(0)
    return share + (residual if o.choose == "share" else 0)     # "max": the share alone


def choose(q, k, v, scale, o, wanted=None):
    """wanted [N] bool: queries whose blocks are needed (all where None)."""
    N, S = len(q), len(k)
    P, Z, centre = metric(q, k, min(o.rank, q.shape[1]))
    y = q @ P - (q @ P).mean(0)
    z = scale * ((k - centre) @ Z)
    group, C = kmeans(y, o.groups, o.iterations, o.seed)
    c, ymean = means(q, group, C)[0], means(y, group, C)[0]
    cluster, M = np.zeros(S, np.int32), 0
    if o.keyclusters:
        rms = np.sqrt(((y - ymean[group]) ** 2).mean(0))
        cluster, M = kmeans(z * rms, o.keyclusters, o.iterations, o.seed + 1000)
    plain = means(z, cluster, max(M, 1))[0]
    out = Choice(P, Z, centre, group, C, cluster, M, [])
    for j in range(C):
        members = np.flatnonzero(group == j)
        if len(members) == 0 or (wanted is not None and not wanted[members].any()):
            continue
        s = scale * (k @ c[j])                                  # [S]
        d = y[members] - ymean[j]
        var = (d * d).mean(0)
        spread = (z * z) @ var                                  # [S] variance of d.z
        if not o.pool or not (o.own or o.block):                # one set for the group
            by = {"score": s, "spread": s + 1.5 * np.sqrt(spread), "expected": s + 0.5 * spread,
                  "both": s + 0.5 * spread + 0.5 * np.log((z - plain[cluster]) ** 2 @ var + 1e-6)}
            X = largest(by[o.groupby], o.topk)
            add_block(out, o, q, k, scale, j, members, X, None, wanted)
            continue
        by = {"expected": s + 0.5 * spread, "spread": s + 1.5 * np.sqrt(spread), "score": s}[o.poolby]
        if o.own:                                               # W
            X = largest(s, o.topk)
            by[X] = -np.inf
            pool = largest(by, min(o.pool, S - len(X)))
            a = s[pool] + scale * ((q[members] - c[j]) @ centre)[:, None] + d @ z[pool].T
            add_block(out, o, q, k, scale, j, members, X, (pool, a), wanted)
            continue
        pool = largest(by, o.pool)
        residual = 0.5 * np.log((z[pool] - plain[cluster[pool]]) ** 2 @ var + 1e-6)
        e = np.bincount(cluster, np.exp(s - s.max()), max(M, 1))
        mass = np.log(np.maximum(e, 1e-30)) + s.max(), plain
        if o.cut == "kmeans":
            part, count = kmeans(d, max(1, round(len(members) / o.block)), o.iterations, j)
            parts = [members[part == x] for x in range(count) if (part == x).any()]
        else:
            order = ordered(y, members, max(1, o.block // o.points))
            parts = [order[a:a + o.block] for a in range(0, len(order), o.block)]
        for part in parts:
            if wanted is not None and not wanted[part].any():
                continue
            by = block_scores(o, s[pool], z[pool], plain[cluster[pool]], y[part] - ymean[j],
                              mass, residual)
            add_block(out, o, q, k, scale, j, part, pool[largest(by, o.topk)], None, wanted)
    return out


def add_block(out, o, q, k, scale, j, members, X, own, wanted):
    """Near keys only where positions of queries and keys are the same (N = S)."""
    if wanted is not None:
        own = own and (own[0], own[1][wanted[members]])
        members = members[wanted[members]]
    exact = np.zeros((len(members), len(k)), bool)
    exact[:, X] = True
    near = np.zeros_like(exact)
    if o.near and len(q) == len(k):
        first = members if o.band <= 1 else members // o.band * o.band
        for row, a in enumerate(first):
            near[row, max(0, a - o.near):a + o.near + max(1, o.band)] = True
    exact |= near
    if own:
        pool, a = own
        a = np.where(exact[:, pool], -np.inf, a)
        if o.threshold:         # below each member's best; one cut for the group
            a = a - a.max(1, keepdims=True)
            exact[:, pool] |= a >= np.sort(a, None)[-min(a.size, o.own * len(members))]
        else:
            exact[np.arange(len(members))[:, None], pool[largest(a, o.own)]] = True
    out.blocks.append((j, members, X, exact, near, own))


# ---- The formula, as rows ------------------------------------------------------------------

LEAST = 1e-3    # of a cluster's sum: with less left, its z is the plain mean


def cluster_centres(o, z, cluster, M, e, X, plain):
    """z of each cluster's rest [M][r]: e [S] the centroid's weights, X exact keys."""
    if o.centre == "plain":
        return plain, None
    rest = e.copy()
    rest[X] = 0
    before, left = np.bincount(cluster, e, M), np.bincount(cluster, rest, M)
    good = left > LEAST * before
    order = np.argsort(cluster, kind="stable")
    sums = np.zeros((M, z.shape[1]), z.dtype)
    sizes = np.bincount(cluster, minlength=M)
    there = np.flatnonzero(sizes)
    sums[there] = np.add.reduceat((rest[:, None] * z)[order], (np.cumsum(sizes) - sizes)[there])
    weighted = sums / np.where(good, left, 1)[:, None]
    return np.where(good[:, None], weighted, plain).astype(z.dtype), (rest, left, good)


def rows(q, k, v, scale, o, ch):
    """For every block: members, the row of logs [n][S] and what backward needs."""
    z = scale * ((k - ch.centre) @ ch.Z)
    c = means(q, ch.group, ch.C)[0]
    plain = means(z, ch.cluster, max(ch.M, 1))[0]
    mean_keys = means(k, ch.cluster, max(ch.M, 1))[0]
    for j, members, X, exact, near, own in ch.blocks:
        s = scale * (k @ c[j])
        x = q[members] - c[j]
        t = zm = weights = None
        if ch.M == 0:
            a = np.repeat(s[None], len(members), 0)
        else:
            e = np.exp(s - s.max())
            if o.tilt == "mean":
                t = scale * (x @ mean_keys.T)
            else:
                zm, weights = cluster_centres(o, z, ch.cluster, ch.M, e, X, plain)
                t = scale * (x @ ch.centre)[:, None] + (x @ ch.P) @ zm.T
            a = s + t[:, ch.cluster]
        if o.fill and own:
            a = filled(a, own[0], own[1], exact, ch)
        if o.hide == "rank" and near.any():
            yield members, hidden(a, q, k, scale, s, x, z, ch, members, exact, near), None
            continue
        own_scores = scale * (q[members] @ k.T)
        yield members, np.where(exact, own_scores, a), (j, s, t, z, zm, weights, exact)


def filled(a, pool, score, exact, ch):
    """Step 7: clusters' masses with the pool's own low-rank scores."""
    e = np.where(exact, 0, np.exp(a - a.max(1, keepdims=True)))
    before = np.stack([np.bincount(ch.cluster, r, ch.M) for r in e])
    e[:, pool] = np.where(exact[:, pool], 0, np.exp(score - a.max(1, keepdims=True)))
    after = np.stack([np.bincount(ch.cluster, r, ch.M) for r in e])
    ratio = np.log(np.maximum(after, 1e-30) / np.maximum(before, 1e-30))
    return a + np.where(before > 0, ratio, 0)[:, ch.cluster].astype(a.dtype)


def hidden(a, q, k, scale, s, x, z, ch, members, exact, near):
    """Rows where what near keys take from the rest is itself a low-rank estimate: their
    weight is e^s_il + e^(s_jl + t) - e^(s_il - (d.z + b) + t); logs of it, at least -60."""
    own = scale * (q[members] @ k.T)
    b = scale * (x @ ch.centre)[:, None]
    estimate = own - (x @ ch.P) @ z.T - b + (a - s)
    top = np.maximum(own, a).max(1, keepdims=True)
    w = np.exp(own - top) + np.where(near, np.exp(a - top) - np.exp(estimate - top), 0)
    return np.where(exact, np.log(np.maximum(w, 1e-26)) + top, a)


def attend(q, k, v, scale, o, ch, out=None):
    """out [N][Dv]. A query alone in its group gets full attention by the same formula:
    x = 0, so the rest is exact."""
    out = np.zeros((len(q), v.shape[1]), q.dtype) if out is None else out
    if len(k) == 0:
        return out
    for members, a, _ in rows(q, k, v, scale, o, ch):
        e = np.exp(a - a.max(1, keepdims=True))
        out[members] = e @ v / e.sum(1, keepdims=True)
    return out


# ---- The same as the C code forms it ----------------------------------------------------------

STRAIN = 32     # hidden weight over what remains, above which the rest is summed again


def staged(q, k, v, scale, o, ch):
    """Sums per group and key cluster, less what is exact: out [N][Dv], and how many queries had
    their rest summed again. Only tilt=rank, without step 7."""
    out, again = np.zeros((len(q), v.shape[1]), q.dtype), 0
    z = scale * ((k - ch.centre) @ ch.Z)
    wide = np.concatenate([v, z, np.ones((len(k), 1), q.dtype)], 1)     # [S][Dv + r + 1]
    c = means(q, ch.group, ch.C)[0]
    plain = means(z, ch.cluster, ch.M)[0]
    Dv = v.shape[1]
    sums = {}
    for j, members, X, exact, near, own in ch.blocks:
        if j not in sums:       # the centroid's pass: one softmax per key cluster
            s = scale * (k @ c[j])
            top = np.full(ch.M, -np.inf, q.dtype)
            np.maximum.at(top, ch.cluster, s)
            w = np.exp(s - top[ch.cluster])
            total = np.zeros((ch.M, wide.shape[1]), q.dtype)
            np.add.at(total, ch.cluster, w[:, None] * wide)
            sums[j] = s, top, w, total
        s, top, w, total = sums[j]
        left = total.copy()     # once per block: the rest without X
        np.subtract.at(left, ch.cluster[X], w[X][:, None] * wide[X])
        good = left[:, -1] > LEAST * total[:, -1]
        zm = plain
        if o.centre == "weighted":
            zm = np.where(good[:, None], left[:, Dv:-1] / np.where(good, left[:, -1], 1)[:, None], plain)
        x = q[members] - c[j]
        t = scale * (x @ ch.centre)[:, None] + (x @ ch.P) @ zm.T        # [n][M]
        value = np.concatenate([left[:, :Dv], left[:, -1:]], 1)         # [M][Dv + 1]
        for row, i in enumerate(members):
            special = exact[row].copy()         # near and own keys: not yet out of the rest
            special[X] = False
            L, E = np.flatnonzero(special), np.flatnonzero(exact[row])
            mine = scale * (k[E] @ q[i])
            rest = t[row] + top
            peak = max(mine.max(initial=-np.inf), rest.max())
            r = np.exp(rest - peak)
            acc = r @ value
            acc += np.exp(mine - peak) @ wide[E][:, [*range(Dv), -1]]
            acc -= np.exp(s[L] + t[row, ch.cluster[L]] - peak) @ wide[L][:, [*range(Dv), -1]]
            if r @ total[:, -1] > STRAIN * acc[-1]:
                again += 1
                line = s + t[row, ch.cluster]
                line[E] = mine
                e = np.exp(line - line.max())
                acc = np.append(e @ v, e.sum())
            out[i] = acc[:Dv] / acc[-1]
    return out, again


# ---- Backward ------------------------------------------------------------------------------

def backward(q, k, v, scale, o, ch, dout):
    """dq, dk, dv by sums over groups, key clusters and exact keys: nothing of size N x S is
    needed between the passes (here `exact` masks stand for lists). tilt=rank, no step 7."""
    Dv, r = v.shape[1], ch.P.shape[1]
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    z = scale * ((k - ch.centre) @ ch.Z)
    wide = np.concatenate([v, z], 1)            # [S][Dv + r]: values, and the tilt's directions
    dwide = np.zeros_like(wide)
    c, sizes = means(q, ch.group, ch.C)
    plain, counts = means(z, ch.cluster, ch.M)
    dplain = np.zeros_like(plain)
    dc = np.zeros_like(c)
    m = ch.cluster
    for j in sorted({b[0] for b in ch.blocks}):
        s = scale * (k @ c[j])
        e = np.exp(s - s.max())
        E = np.bincount(m, e, ch.M)
        W = np.stack([np.bincount(m, e * v[:, f], ch.M) for f in range(Dv)], 1)
        G, gamma = np.zeros((ch.M, Dv + r)), np.zeros(ch.M)
        ds = np.zeros(len(k))
        for _, members, X, exact, near, own in (b for b in ch.blocks if b[0] == j):
            zm, weights = cluster_centres(o, z, m, ch.M, e, X, plain)
            x = q[members] - c[j]
            d = x @ ch.P
            t = scale * (x @ ch.centre)[:, None] + d @ zm.T
            own_scores = scale * (q[members] @ k.T)
            line = np.where(exact, own_scores, s + t[:, m])
            peak = line.max(1, keepdims=True)
            norm = np.log(np.exp(line - peak).sum(1, keepdims=True)) + peak  # kept from forward
            g = dout[members]
            out = np.exp(line - norm) @ v
            delta = (g * out).sum(1, keepdims=True)
            slope = g @ v.T - delta
            # Exact keys.
            A = np.where(exact, np.exp(own_scores - norm), 0)
            dq[members] += scale * (A * slope) @ k
            dk += scale * (A * slope).T @ q[members]
            dwide[:, :Dv] += A.T @ g
            # The rest: whole clusters, less the exact keys' share in them.
            u = np.exp(t + s.max() - norm)                       # [n][M]
            less = np.where(exact, e * u[:, m], 0)               # [n][S], on exact keys alone
            dt = u * (g @ W.T - delta * E)
            for row in range(len(members)):
                dt[row] -= np.bincount(m, less[row] * slope[row], ch.M)
            G[:, :Dv] += u.T @ g
            gamma += (u * delta).sum(0)
            ds -= (less * slope).sum(0)
            dwide[:, :Dv] -= less.T @ g
            # The tilt.
            dx = scale * dt.sum(1, keepdims=True) * ch.centre + (dt @ zm) @ ch.P.T
            dq[members] += dx
            dc[j] -= dx.sum(0)
            dzm = dt.T @ d                                       # [M][r]
            if weights is None:
                dplain += dzm
                continue
            _, left, good = weights
            Q = np.where(good[:, None], dzm / np.where(good, left, 1)[:, None], 0)
            omega = (Q * zm).sum(1)
            dplain += np.where(good[:, None], 0, dzm)
            G[:, Dv:] += Q
            gamma += omega
            ds[X] -= e[X] * ((z[X] * Q[m[X]]).sum(1) - omega[m[X]])
            dwide[X, Dv:] -= e[X][:, None] * Q[m[X]]
        # One pass of the centroid over the keys.
        ds += e * ((wide * G[m]).sum(1) - gamma[m])
        dwide += e[:, None] * G[m]
        dc[j] += scale * ds @ k
        dk += scale * ds[:, None] * c[j]
    dz = dwide[:, Dv:] + (dplain / np.maximum(counts, 1)[:, None])[m]
    dk += scale * dz @ ch.Z.T
    dq += (dc / np.maximum(sizes, 1)[:, None])[ch.group]
    return dq, dk, dwide[:, :Dv]


# ---- Cost --------------------------------------------------------------------------------------

def cost(o, N, S, D, Dv):
    """Multiply-adds of one head, by part."""
    C, M, r = min(o.groups, N), min(o.keyclusters, S), min(o.rank, D)
    n = {"metric": 256 * D * D + 2 * D ** 3 + 4 * r * D * D, "project queries": N * D * r,
         "k-means, queries": (3 * min(N, max(4096, 32 * C)) + N) * C * r,
         "centroids": C * S * (D + Dv), "exact keys": N * min(o.topk, S) * (D + Dv)}
    if M:
        n["project keys"] = S * D * r
        n["k-means, keys"] = (3 * min(S, max(4096, 32 * M)) + S) * M * r
        n["tilt"] = N * M * ((r if o.tilt == "rank" else D) + Dv)
        if o.centre == "weighted" and o.tilt == "rank":
            n["weighted centres"] = C * S * r
    if o.groupby != "score" or o.pool:
        n["spread"] = C * S * r
    if o.near and N == S:
        width = 2 * o.near + max(1, o.band)
        n["near keys"] = N * width * (D + Dv + (r if o.hide == "rank" else D))
    if o.pool and o.own:
        n["pool scores"] = N * min(o.pool, S) * r
        n["own keys"] = N * o.own * (D + Dv)
    elif o.pool and o.block:
        each = 1 if o.choose in ("mean", "residual") else min(o.points, o.block)
        n["pool scores"] = N * each * min(o.pool, S) * r // o.block
    return n


# ---- Commands ------------------------------------------------------------------------------------

def heads_of(folder, layers, heads, count, length):
    """(layer, q, k, v, full, queries) for every head; full on the drawn queries alone."""
    rng = np.random.default_rng(0)
    folder = Path(folder)
    for layer in sorted(int(p.name[5:-6]) for p in folder.glob("layer*_q.npy")):
        if layers and layer not in layers:
            continue
        q, k, v = (np.load(folder / f"layer{layer}_{n}.npy", mmap_mode="r")[0] for n in "qkv")
        for h in heads or range(len(q)):
            kv = h * len(k) // len(q)
            x = [np.array(a[:length] if length else a, np.float32) for a in (q[h], k[kv], v[kv])]
            n = len(x[0])
            drawn = np.sort(rng.choice(n, count, replace=False)) if 0 < count < n else np.arange(n)
            s = x[0][drawn] @ x[1].T / np.float32(np.sqrt(x[0].shape[1]))
            s = np.exp(s - s.max(1, keepdims=True))
            yield layer, *x, s @ x[2] / s.sum(1, keepdims=True), drawn


def error_command(a):
    found = {}
    for layer, q, k, v, full, drawn in heads_of(a.folder, a.layers, a.heads, a.rows, a.length):
        shape = len(q), len(k), q.shape[1], v.shape[1]
        wanted = None if len(drawn) == len(q) else np.isin(np.arange(len(q)), drawn)
        scale = np.float32(1 / np.sqrt(q.shape[1]))
        for text in a.settings:
            for seed in range(1, a.seeds + 1):
                o = replace(parse(text, *shape[:3]), seed=seed)
                out = attend(q, k, v, scale, o, choose(q, k, v, scale, o, wanted))[drawn]
                sums = found.setdefault((text, seed, layer), [0.0, 0.0])
                sums[0] += float(((out - full).astype(np.float64) ** 2).sum())
                sums[1] += float((full.astype(np.float64) ** 2).sum())
    base = sum(cost(parse(a.base, *shape[:3]), *shape).values())
    print(f"{a.folder.rstrip('/').split('/')[-1]}: N {shape[0]}, D {shape[2]}, seeds {a.seeds}; cost over {a.base}")
    for text in a.settings:
        layers = sorted({l for t, _, l in found if t == text})
        by_seed = np.array([[np.sqrt(np.divide(*found[text, s, l])) for l in layers]
                            for s in range(1, a.seeds + 1)])
        price = sum(cost(parse(text, *shape[:3]), *shape).values()) / base
        means_ = by_seed.mean(1)
        print(f"{by_seed.mean():.4f} [{means_.min():.4f} {means_.max():.4f}] {price:.3f}  {text:50s}",
              " ".join(f"{x:.3f}" for x in by_seed.mean(0)), flush=True)


def cost_command(a):
    base = sum(cost(parse(a.base, a.N, a.S, a.D), a.N, a.S, a.D, a.D).values())
    for text in a.settings:
        o = parse(text, a.N, a.S, a.D)
        parts = cost(o, a.N, a.S, a.D, a.D)
        print(f"{text}: {sum(parts.values()) / base:.3f} of {a.base}; C {o.groups} M {o.keyclusters} topk {o.topk}"
              f" points {o.points} pool {o.pool} own {o.own} near {o.near} rank {o.rank}")
        for name, n in parts.items():
            print(f"    {name:20s} {n / 1e6:10.2f} M  {n / sum(parts.values()):.3f}")


def example(N, S, D, Dv, seed, dtype=np.float64):
    """Queries in loose groups, keys that some of them look at."""
    rng = np.random.default_rng(seed)
    where = rng.normal(size=(5, D)) * 2
    q = where[rng.integers(5, size=N)] + rng.normal(size=(N, D))
    k = rng.normal(size=(S, D)) + 0.3 * where[rng.integers(5, size=S)]
    return q.astype(dtype), k.astype(dtype), rng.normal(size=(S, Dv)).astype(dtype)


CHECKS = ["shoal-6:keyclusters=5,topk=7,pool=20,block=4,points=2,near=2,rank=4",
          "shoal-6:keyclusters=5,topk=7,pool=20,block=4,points=2,near=2,rank=4,centre=plain",
          "D-6:keyclusters=5,topk=7,near=2,rank=4", "D-6:keyclusters=5,topk=7,near=0,rank=4,centre=weighted",
          "W-6:keyclusters=5,topk=4,own=3,pool=12,near=2,rank=4"]


def check_command(_):
    for text in CHECKS:
        q, k, v = example(40, 40, 8, 6, 3)
        o, scale = parse(text, 40, 40, 8), 1 / np.sqrt(8)
        ch = choose(q, k, v, scale, o)
        out = attend(q, k, v, scale, o, ch)
        other, again = staged(q, k, v, scale, o, ch)
        assert np.allclose(out, other, atol=1e-11), text
        dout = np.random.default_rng(5).normal(size=out.shape)
        grads = backward(q, k, v, scale, o, ch, dout)
        worst = 0
        for x, g in zip((q, k, v), grads):
            for at in np.random.default_rng(6).choice(x.size, 60, replace=False):
                keep, step = x.flat[at], 1e-5
                x.flat[at] = keep + step
                up = (attend(q, k, v, scale, o, ch) * dout).sum()
                x.flat[at] = keep - step
                down = (attend(q, k, v, scale, o, ch) * dout).sum()
                x.flat[at] = keep
                worst = max(worst, abs((up - down) / (2 * step) - g.flat[at]) / (1e-2 + abs(g.flat[at])))
        assert worst < 1e-5, (text, worst)
        print(f"gradients, {text}: largest relative difference {worst:.1e}")
    edge_checks()


def edge_checks():
    def run(N, S, text, dtype=np.float64):
        q, k, v = example(N, S, 8, 6, 4, dtype)
        o, scale = parse(text, N, S, 8), q.dtype.type(1 / np.sqrt(8))
        ch = choose(q, k, v, scale, o) if S else None
        out = attend(q, k, v, scale, o, ch) if S else np.zeros((N, 6))
        s = np.exp(scale * q @ k.T)
        return out, s @ v / s.sum(1, keepdims=True) if S else out, (q, k, v, scale, o, ch)
    small = "shoal-8:topk=4,pool=8,block=4,points=2,near=1,rank=4"
    for N, S, what in ((5, 30, "N <= C: every query its own group"), (8, 8, "N = C = S"),
                       (30, 3, "fewer keys than topk: all exact"), (30, 4, "fewer keys than clusters")):
        out, full, _ = run(N, S, small)
        assert np.allclose(out, full, atol=1e-10), what
        print("full attention:", what)
    out, full, _ = run(30, 30, "shoal-8:topk=30,pool=30,block=4,points=2,rank=4")
    assert np.allclose(out, full)
    print("full attention: topk and pool of all keys")
    # Keys that are all alike, queries that are all alike: nothing to invert, still finite.
    q, k, v = example(40, 40, 8, 6, 4)
    o = parse(small, 40, 40, 8)
    for a, b in ((q * 0 + 1, k), (q, k * 0 + 1), (q * 0, k * 0)):
        out = attend(a, b, v, 0.3, o, choose(a, b, v, 0.3, o))
        s = np.exp(0.3 * a @ b.T)
        assert np.allclose(out, s @ v / s.sum(1, keepdims=True), atol=1e-8)
    print("full attention: all queries or all keys alike")
    # Scores in the hundreds, single precision: sums by subtraction against rows.
    q, k, v = (x.astype(np.float32) for x in example(300, 300, 16, 8, 7))
    o = parse("shoal-8:topk=8,pool=24,near=4,rank=8", 300, 300, 16)
    for by in (1, 4, 12):
        scale = np.float32(by / 4)
        ch = choose(q, k, v, scale, o)
        rows64 = attend(*(x.astype(np.float64) for x in (q, k, v)), np.float64(scale), o, ch)
        out, again = staged(q, k, v, scale, o, ch)
        assert np.isfinite(out).all()
        print(f"float sums, scores up to {np.abs(scale * q @ k.T).max():.0f}: "
              f"{np.abs(out - rows64).max():.1e} from double rows, {again} of 300 summed again")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = p.add_subparsers(required=True)
    e = sub.add_parser("error", help="error and multiply-adds on a folder")
    e.add_argument("folder")
    e.add_argument("settings", nargs="+")
    e.add_argument("--seeds", type=int, default=1)
    e.add_argument("--layers", type=int, nargs="+")
    e.add_argument("--heads", type=int, nargs="+")
    e.add_argument("--rows", type=int, default=0, help="queries of a head to compare; 0: all")
    e.add_argument("--length", type=int, default=0, help="only the first positions")
    e.set_defaults(run=error_command)
    c = sub.add_parser("cost", help="multiply-adds of one head")
    for name in "NSD":
        c.add_argument(name, type=int)
    c.add_argument("settings", nargs="+")
    c.set_defaults(run=cost_command)
    for x in (e, c):
        x.add_argument("--base", default="first-100:topk=64", help="what costs are relative to")
    sub.add_parser("check", help="gradients and edge rules").set_defaults(run=check_command)
    a = p.parse_args()
    a.run(a)


if __name__ == "__main__":
    main()
