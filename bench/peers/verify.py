"""Our results against PyTorch in the same process, before any of our times is printed."""
import torch


def relative(ours, theirs):
    theirs = theirs.to(torch.float64)
    return float((ours.to(torch.float64) - theirs).norm() / theirs.norm())


def sdpa_with_gradients(data):
    q, k, v = (t.detach().clone().requires_grad_(True) for t in (data.q, data.k, data.v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    out.backward(data.dout)
    return out.detach(), q.grad, k.grad, v.grad


def full(contender, data, mode):
    """Everything, against scaled_dot_product_attention and its gradients."""
    if mode == "forward":
        with torch.no_grad():
            out = torch.nn.functional.scaled_dot_product_attention(data.q, data.k, data.v)
        return {"out": relative(contender.out, out)}
    theirs = sdpa_with_gradients(data)
    ours = contender.out, contender.dq, contender.dk, contender.dv
    return {name: relative(a, b) for name, a, b in zip(("out", "dq", "dk", "dv"), ours,
                                                       theirs)}


def clustered_head(q, k, v, groups, top):
    """The method's formulas for one head in double precision. groups: [N]; top: [C, k] or
    None. Differentiable in q, k, v; groups and top are constants."""
    clusters = int(groups.max()) + 1
    scale = q.shape[-1] ** -0.5
    ones = torch.zeros(clusters, q.shape[0], dtype=q.dtype)
    ones[groups, torch.arange(q.shape[0])] = 1
    centroids = ones @ q / ones.sum(1, keepdim=True).clamp(min=1)
    weights = torch.softmax(scale * centroids @ k.T, -1)  # [C, S]
    if top is None:
        return (weights @ v)[groups]
    top = top[:clusters]
    several = (top[:, :1] >= 0).to(q.dtype)  # a cluster of one query has no top keys
    top = top.clamp(min=0)
    mass = (several * weights.gather(1, top)).sum(1)
    tail = (weights - several * (weights - weights.scatter(1, top, 0.0))) @ v  # [C, Dv]
    own = torch.softmax(scale * torch.einsum("nd,nkd->nk", q, k[top[groups]]), -1)
    exact = torch.einsum("nk,nkd->nd", own, v[top[groups]])
    return mass[groups, None] * exact + tail[groups]


def clustered(contender, data, mode, gradients_up_to=4096):
    """The first head, with the groups and top keys that the plan reports. The gradients
    need much memory here, so only up to a length."""
    b, h, n, _ = data.q.shape
    groups = contender.array(contender.plan.groups(), b * h * n)[:n]
    clusters, topk = contender.clusters, contender.topk
    top = contender.array(contender.plan.top_keys(), b * h * clusters * max(topk, 1))
    top = top[:clusters * topk].reshape(clusters, topk) if top is not None else None
    head = [t[0, 0].to(torch.float64).requires_grad_(True)
            for t in (data.q, data.k, data.v)]
    train = mode == "train" and n <= gradients_up_to
    with torch.set_grad_enabled(train):
        out = clustered_head(*head, groups, top)
    errors = {"out of head 0": relative(contender.out[0, 0], out.detach())}
    if train:
        out.backward(data.dout[0, 0].to(torch.float64))
        for name, ours, leaf in zip(("dq", "dk", "dv"),
                                    (contender.dq, contender.dk, contender.dv), head):
            errors[f"{name} of head 0"] = relative(ours[0, 0], leaf.grad)
    return errors


def check(contender, data, mode):
    """{what: relative error}; empty where there is nothing to compare with (lsh: each
    implementation draws hashes of its own; shoal bench checks it otherwise)."""
    if contender.kind == "full":
        return full(contender, data, mode)
    if "clustered" in contender.kind:
        return clustered(contender, data, mode)
    return {}
