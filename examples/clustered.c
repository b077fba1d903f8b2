/* Clustered attention from scratch, in one file without the library.
 *
 *     cc -O2 examples/clustered.c -lm && ./a.out
 *
 * This is a tutorial: it computes clustered attention and improved clustered attention
 * (Vyas, Katharopoulos, Fleuret, "Fast Transformers with Clustered Attention", 2020),
 * forward and backward, for one head. Nothing here is fast. The library computes the same
 * numbers (tests/core/test_tutorial.c compares them) with blocks, vectors and threads.
 *
 * ATTENTION. N queries q_i look at S keys k_l, each with a value v_l. The score of a pair
 * is s_il = scale q_i . k_l, a query's weights are the softmax of its scores, and its
 * output is the weighted mean of the values:
 *
 *     A = softmax(scale Q K')   [N][S]      out = A V   [N][Dv]
 *
 * That costs N S (D + Dv) multiplications: twice the sequence, four times the work.
 *
 * THE IDEA. Queries that are close to each other attend to the same keys: if |q - q'| is
 * at most e, their rows of A differ by at most e |K| (spectral norm). So put the queries
 * into C clusters and let one query per cluster, the mean of its members, attend for all
 * of them. That costs C S (D + Dv), and C does not grow with the sequence.
 *
 * THE IMPROVEMENT. A cluster's members agree on which keys matter, but not on how much
 * each of them matters. So take the k keys that the centroid likes best, compute every
 * member's own scores for those, and share the rest of the row as before. That adds
 * N k (D + Dv).
 *
 * Read on from top to bottom: clusters, softmax, forward, backward, and a program that
 * checks the gradients and prints how close both approximations come.
 *
 * Names: i is a query, j a cluster, l a key, d a feature. Matrices are stored by rows. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BITS = 63, LLOYD_STEPS = 10 };

typedef struct {
    int N, S;  /* queries, keys */
    int D, Dv; /* features of a query or key, and of a value */
    int C;     /* clusters */
    int k;     /* exact keys per cluster; 0 for clustered attention */
    double scale;
} problem;

/* Results of forward that backward needs. The clusters and the exact keys are constants
   in backward: they are choices, and choices have no derivative. */
typedef struct {
    int *cluster;     /* [N]: the cluster of each query */
    int *size;        /* [C]: members */
    int *top;         /* [C][k]: the exact keys of a cluster */
    double *centroid; /* [C][D]: mean of the members */
    double *shared;   /* [C][S]: softmax of the centroid's scores, A^c in the paper */
    double *own;      /* [N][k]: softmax of a query's own scores of the exact keys */
} memory;

static void *zeros(size_t count, size_t size) {
    void *made = calloc(count ? count : 1, size);
    if (!made)
        exit(1);
    return made;
}

static double dot(const double *a, const double *b, int count) {
    double sum = 0;
    for (int d = 0; d < count; d++)
        sum += a[d] * b[d];
    return sum;
}

/* to += factor * from */
static void add(double *to, double factor, const double *from, int count) {
    for (int d = 0; d < count; d++)
        to[d] += factor * from[d];
}

/* ---- Random numbers ---------------------------------------------------------------- */

static uint64_t random_state = 1;

static uint64_t random_bits(void) { /* splitmix64 */
    uint64_t x = random_state += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static double normal(void) { /* Box and Muller */
    const double u = ((double)(random_bits() >> 11) + 1) / 9007199254740993.0;
    const double v = (double)(random_bits() >> 11) / 9007199254740992.0;
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

/* ---- Clusters ---------------------------------------------------------------------- */

/* Comparing queries feature by feature would cost D per pair. A hash is cheaper: draw
   63 random directions and keep one bit for each, the side on which the query lies. The
   Hamming distance of two hashes, the number of bits in which they differ, then
   estimates the angle between two queries, and needs only an exclusive or and a bit
   count. */
static void hash_queries(const problem *p, const double *q, uint64_t *hash) {
    double *direction = zeros((size_t)p->D, sizeof *direction);
    memset(hash, 0, (size_t)p->N * sizeof *hash);
    for (int bit = 0; bit < BITS; bit++) {
        for (int d = 0; d < p->D; d++)
            direction[d] = normal();
        for (int i = 0; i < p->N; i++)
            if (dot(q + i * p->D, direction, p->D) > 0)
                hash[i] |= (uint64_t)1 << bit;
    }
    free(direction);
}

static int distance(uint64_t a, uint64_t b) {
    int bits = 0;
    for (uint64_t differ = a ^ b; differ; differ &= differ - 1)
        bits++;
    return bits;
}

/* K-means on hashes. The mean of bits is their majority. An empty cluster takes the hash
   that is farthest from its own centre. */
static void find_clusters(const problem *p, const double *q, int *cluster) {
    uint64_t *hash = zeros((size_t)p->N, sizeof *hash);
    uint64_t *centre = zeros((size_t)p->C, sizeof *centre);
    hash_queries(p, q, hash);
    for (int j = 0; j < p->C; j++) /* evenly spaced queries are a good enough start */
        centre[j] = hash[(int64_t)j * p->N / p->C];
    for (int step = 0; step < LLOYD_STEPS; step++) {
        for (int i = 0; i < p->N; i++) {
            int nearest = 0;
            for (int j = 1; j < p->C; j++)
                if (distance(hash[i], centre[j]) < distance(hash[i], centre[nearest]))
                    nearest = j;
            cluster[i] = nearest;
        }
        for (int j = 0; j < p->C; j++) {
            int votes[BITS] = {0}, members = 0, farthest = 0;
            for (int i = 0; i < p->N; i++) {
                if (distance(hash[i], centre[cluster[i]]) >
                    distance(hash[farthest], centre[cluster[farthest]]))
                    farthest = i;
                if (cluster[i] != j)
                    continue;
                members++;
                for (int bit = 0; bit < BITS; bit++)
                    votes[bit] += hash[i] >> bit & 1 ? 1 : -1;
            }
            if (members == 0)
                cluster[farthest] = j, centre[j] = hash[farthest];
            for (int bit = 0; members > 0 && bit < BITS; bit++)
                if (votes[bit] != 0) /* a tie keeps the old bit */
                    centre[j] = (centre[j] & ~((uint64_t)1 << bit)) |
                                (uint64_t)(votes[bit] > 0) << bit;
        }
    }
    free(hash);
    free(centre);
}

/* ---- Softmax ----------------------------------------------------------------------- */

/* Subtracting the largest score changes no weight and keeps exp from overflowing. */
static void softmax(double *row, int count) {
    double top = -INFINITY, sum = 0;
    for (int l = 0; l < count; l++)
        top = fmax(top, row[l]);
    for (int l = 0; l < count; l++)
        sum += row[l] = exp(row[l] - top);
    for (int l = 0; l < count; l++)
        row[l] /= sum;
}

/* The derivative: with weights a and their gradients da, a score has the gradient
   a_l (da_l - sum_r a_r da_r). Writes it over da. */
static void softmax_backward(const double *a, double *da, int count) {
    const double mean = dot(a, da, count);
    for (int l = 0; l < count; l++)
        da[l] = a[l] * (da[l] - mean);
}

/* ---- Forward ----------------------------------------------------------------------- */

/* The exact result that both approximations aim at. */
static void full_attention(const problem *p, const double *q, const double *k,
                           const double *v, double *out) {
    double *row = zeros((size_t)p->S, sizeof *row);
    memset(out, 0, (size_t)(p->N * p->Dv) * sizeof *out);
    for (int i = 0; i < p->N; i++) {
        for (int l = 0; l < p->S; l++)
            row[l] = p->scale * dot(q + i * p->D, k + l * p->D, p->D);
        softmax(row, p->S);
        for (int l = 0; l < p->S; l++)
            add(out + i * p->Dv, row[l], v + l * p->Dv, p->Dv);
    }
    free(row);
}

static int is_top(const problem *p, const memory *m, int j, int l) {
    for (int t = 0; t < p->k; t++)
        if (m->top[j * p->k + t] == l)
            return 1;
    return 0;
}

/* The mass of cluster j: the share of its row on its exact keys. */
static double top_mass(const problem *p, const memory *m, int j) {
    double mass = 0;
    for (int t = 0; t < p->k; t++)
        mass += m->shared[j * p->S + m->top[j * p->k + t]];
    return mass;
}

/* The centroids, their rows of weights, and the keys with the largest weights. */
static void attend_centroids(const problem *p, const double *q, const double *k,
                             memory *m) {
    memset(m->size, 0, (size_t)p->C * sizeof *m->size);
    memset(m->centroid, 0, (size_t)(p->C * p->D) * sizeof *m->centroid);
    for (int i = 0; i < p->N; i++)
        m->size[m->cluster[i]]++;
    for (int i = 0; i < p->N; i++)
        add(m->centroid + m->cluster[i] * p->D, 1.0 / m->size[m->cluster[i]],
            q + i * p->D, p->D);
    for (int j = 0; j < p->C; j++) {
        double *row = m->shared + j * p->S;
        for (int l = 0; l < p->S; l++)
            row[l] = p->scale * dot(m->centroid + j * p->D, k + l * p->D, p->D);
        softmax(row, p->S);
        for (int t = 0; t < p->k; t++)
            m->top[j * p->k + t] = -1;
        for (int t = 0; t < p->k; t++) { /* the largest weight that is not yet chosen */
            int best = -1;
            for (int l = 0; l < p->S; l++)
                if (!is_top(p, m, j, l) && (best < 0 || row[l] > row[best]))
                    best = l;
            m->top[j * p->k + t] = best;
        }
    }
}

/* The weight of key l for query i of cluster j is

       mass_j own_il    for the exact keys: the query says how the mass is divided,
       shared_jl        for all others: as its centroid has it.

   A row still sums to 1. With k = 0 there are no exact keys, which is clustered
   attention; with one cluster per query or k = S it is full attention. */
static void clustered_attention(const problem *p, const double *q, const double *k,
                                const double *v, memory *m, double *out) {
    attend_centroids(p, q, k, m);
    memset(out, 0, (size_t)(p->N * p->Dv) * sizeof *out);
    for (int i = 0; i < p->N; i++) {
        const int j = m->cluster[i], *top = m->top + j * p->k;
        double *own = m->own + i * p->k;
        for (int t = 0; t < p->k; t++)
            own[t] = p->scale * dot(q + i * p->D, k + top[t] * p->D, p->D);
        softmax(own, p->k);
        const double mass = top_mass(p, m, j);
        for (int t = 0; t < p->k; t++)
            add(out + i * p->Dv, mass * own[t], v + top[t] * p->Dv, p->Dv);
        for (int l = 0; l < p->S; l++) /* a real program does this once per cluster */
            if (!is_top(p, m, j, l))
                add(out + i * p->Dv, m->shared[j * p->S + l], v + l * p->Dv, p->Dv);
    }
}

/* ---- Backward ---------------------------------------------------------------------- */

/* Given dout, the gradient of some loss with respect to the output, adds the gradients
   with respect to q, k and v. It is the chain rule, applied to the lines above from the
   last to the first. */
static void clustered_backward(const problem *p, const double *q, const double *k,
                               const double *v, const memory *m, const double *dout,
                               double *dq, double *dk, double *dv) {
    double *dshared = zeros((size_t)(p->C * p->S), sizeof *dshared);
    double *dcentroid = zeros((size_t)(p->C * p->D), sizeof *dcentroid);
    double *down = zeros((size_t)p->k, sizeof *down);

    /* The part of each query. */
    for (int i = 0; i < p->N; i++) {
        const int j = m->cluster[i], *top = m->top + j * p->k;
        const double *own = m->own + i * p->k, *g = dout + i * p->Dv;
        const double mass = top_mass(p, m, j);
        double dmass = 0;
        for (int t = 0; t < p->k; t++) {
            const double along = dot(g, v + top[t] * p->Dv, p->Dv);
            add(dv + top[t] * p->Dv, mass * own[t], g, p->Dv);
            dmass += own[t] * along;
            down[t] = mass * along;
        }
        softmax_backward(own, down, p->k);
        for (int t = 0; t < p->k; t++) {
            add(dq + i * p->D, p->scale * down[t], k + top[t] * p->D, p->D);
            add(dk + top[t] * p->D, p->scale * down[t], q + i * p->D, p->D);
        }
        /* The mass is a sum of shared weights, so each of those receives its gradient.
           The other shared weights multiply values directly. */
        for (int t = 0; t < p->k; t++)
            dshared[j * p->S + top[t]] += dmass;
        for (int l = 0; l < p->S; l++) {
            if (is_top(p, m, j, l))
                continue;
            add(dv + l * p->Dv, m->shared[j * p->S + l], g, p->Dv);
            dshared[j * p->S + l] += dot(g, v + l * p->Dv, p->Dv);
        }
    }

    /* The shared part of a cluster: through the softmax to centroids and keys. */
    for (int j = 0; j < p->C; j++) {
        softmax_backward(m->shared + j * p->S, dshared + j * p->S, p->S);
        for (int l = 0; l < p->S; l++) {
            const double ds = p->scale * dshared[j * p->S + l];
            add(dcentroid + j * p->D, ds, k + l * p->D, p->D);
            add(dk + l * p->D, ds, m->centroid + j * p->D, p->D);
        }
    }
    /* A centroid is a mean: each member receives its share. */
    for (int i = 0; i < p->N; i++)
        add(dq + i * p->D, 1.0 / m->size[m->cluster[i]], dcentroid + m->cluster[i] * p->D,
            p->D);
    free(dshared);
    free(dcentroid);
    free(down);
}

/* ---- A program --------------------------------------------------------------------- */

static memory remember(const problem *p) {
    return (memory){.cluster = zeros((size_t)p->N, sizeof(int)),
                    .size = zeros((size_t)p->C, sizeof(int)),
                    .top = zeros((size_t)(p->C * p->k), sizeof(int)),
                    .centroid = zeros((size_t)(p->C * p->D), sizeof(double)),
                    .shared = zeros((size_t)(p->C * p->S), sizeof(double)),
                    .own = zeros((size_t)(p->N * p->k), sizeof(double))};
}

static void forget(memory *m) {
    free(m->cluster);
    free(m->size);
    free(m->top);
    free(m->centroid);
    free(m->shared);
    free(m->own);
}

/* Rows around `themes` random directions, similar to real queries: without such
   structure clusters would be useless. */
static void fill(double *rows, int count, int dim, int themes, double spread) {
    double *theme = zeros((size_t)(themes * dim), sizeof *theme);
    for (int d = 0; d < themes * dim; d++)
        theme[d] = 1.5 * normal();
    for (int i = 0; i < count; i++)
        for (int d = 0; d < dim; d++)
            rows[i * dim + d] = theme[i % themes * dim + d] + spread * normal();
    free(theme);
}

static double relative_error(const double *a, const double *exact, int count) {
    double off = 0, all = 0;
    for (int d = 0; d < count; d++) {
        off += (a[d] - exact[d]) * (a[d] - exact[d]);
        all += exact[d] * exact[d];
    }
    return sqrt(off / all);
}

/* The largest difference between the gradient and a finite difference of the loss
   sum(dout * out), for some elements of q, k and v. Clusters and exact keys are
   unchanged, as long as the step is too small to change the latter. */
static double check_gradient(const problem *p, double *q, double *k, double *v,
                             memory *m) {
    const int counts[3] = {p->N * p->D, p->S * p->D, p->S * p->Dv};
    double *inputs[3] = {q, k, v}, *grads[3], worst = 0;
    double *out = zeros((size_t)(p->N * p->Dv), sizeof *out);
    double *dout = zeros((size_t)(p->N * p->Dv), sizeof *dout);
    for (int a = 0; a < 3; a++)
        grads[a] = zeros((size_t)counts[a], sizeof(double));
    for (int d = 0; d < p->N * p->Dv; d++)
        dout[d] = normal();
    clustered_attention(p, q, k, v, m, out);
    clustered_backward(p, q, k, v, m, dout, grads[0], grads[1], grads[2]);
    for (int a = 0; a < 3; a++)
        for (int n = 0; n < 20; n++) {
            const int at = (int)(random_bits() % (uint64_t)counts[a]);
            const double was = inputs[a][at], step = 1e-5;
            double loss[2];
            for (int side = 0; side < 2; side++) {
                inputs[a][at] = was + (side ? step : -step);
                clustered_attention(p, q, k, v, m, out);
                loss[side] = dot(dout, out, p->N * p->Dv);
            }
            inputs[a][at] = was;
            worst = fmax(worst, fabs((loss[1] - loss[0]) / (2 * step) - grads[a][at]));
        }
    for (int a = 0; a < 3; a++)
        free(grads[a]);
    free(out);
    free(dout);
    return worst;
}

int main(void) {
    problem p = {.N = 256, .S = 256, .D = 16, .Dv = 16, .C = 20, .scale = 0.25};
    double *q = zeros((size_t)(p.N * p.D), sizeof *q);
    double *k = zeros((size_t)(p.S * p.D), sizeof *k);
    double *v = zeros((size_t)(p.S * p.Dv), sizeof *v);
    double *exact = zeros((size_t)(p.N * p.Dv), sizeof *exact);
    double *out = zeros((size_t)(p.N * p.Dv), sizeof *out);
    fill(q, p.N, p.D, 16, 0.5);
    fill(k, p.S, p.D, 16, 0.5);
    fill(v, p.S, p.Dv, 64, 0.5);
    full_attention(&p, q, k, v, exact);
    for (p.k = 0; p.k <= 32; p.k = p.k ? 2 * p.k : 8) {
        memory m = remember(&p);
        random_state = 7; /* the same clusters each time */
        find_clusters(&p, q, m.cluster);
        clustered_attention(&p, q, k, v, &m, out);
        printf("%d clusters, %2d exact keys: error %.3f, gradients within %.0e\n", p.C,
               p.k, relative_error(out, exact, p.N * p.Dv),
               check_gradient(&p, q, k, v, &m));
        forget(&m);
    }
    free(q);
    free(k);
    free(v);
    free(exact);
    free(out);
    return 0;
}
