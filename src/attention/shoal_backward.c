/* Backward of shoal-C. Constants are P, Z and the keys' centre, clusters, blocks, key
 * clusters, pools and exact keys. With mean_i = dout_i . out_i and p_il the weight of key
 * l for query i, every key that is exact for i (X and near ones) has
 *     g_il = p_il (dout_i . v_l - mean_i)
 * and its score's gradient goes to q_i and k_l. A block sees what is left of key cluster
 * m as one pair of weight p_im = a_im (1 + u_im), where a_im has no second-order term.
 * With h_i = dout_i . (d_i'J), gradients of u and of the tilt are
 *     du_im = a_im (dout_i . v_bm - mean_i), less what near keys have in the rest
 *     dt_im = (1 + u_im) du_im + a_im h_i
 * and with a_i the sum of a_im over m
 *     dd_i = dt z_bm + d_i (du var_m) + a_i J dout_i, dJ = a_i d_i dout_i',
 *     dvar_m = d_i^2 du_im / 2;       shoal_moments.c has what follows from J and var.
 * From d and dt go
 *     to q_i and, with the other sign, to the centroid: scale (centre dt + P dd_i),
 *     to the pair's z_bm = sum of dt_im d_i, and from there to z_l and s_jl of the rest.
 * Blocks add up, for every cluster and key cluster, what the pass of the centroids over
 * the keys then gives to every key: G and Q, which multiply v_l and z_l, and a number
 * gamma:
 *     ds_jl = e (G . v_l + Q . z_l - gamma), dv_l = e G, dz_l = e Q,  e = e^(s_jl - top)
 * and what X had no part in is taken back block by block. A bias of key l is part of s_il
 * and of s_jl, and has the sum of their gradients. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attention/shoal_kind.h"

/* ---- Memory ----------------------------------------------------------------------- */

void sh_shoal_place_gradients(head_gradients *gradients, const shoal_plan *plan,
                              const shoal_sizes *size, block_layout *work) {
    gradients->sums = reserve_floats(work, size->C * size->M, size->wide);
    gradients->mass = reserve_floats(work, size->C, size->M);
    gradients->plain = reserve_floats(work, size->M, size->dims);
    gradients->centroids = reserve_floats(work, size->C, size->dim);
    gradients->dipoles =
        reserve_floats(work, size->C, (int64_t)size->dims * size->value_dim);
    gradients->variances = reserve_floats(work, size->M, size->dims);
    gradients->query = reserve_floats(work, size->M, size->dim);
    gradients->turn = sh_reserve(work, 1, sizeof(atomic_int));
    gradients->turns = sh_reserve(work,
                                  ceil_divide(size->C, sh_dense_block(plan->kernels)),
                                  sizeof(atomic_int));
}

/* Gradients of one block of members. */
typedef struct {
    float *exact_keys; /* [k][D] */
    float *exact_bias; /* [k] */
    float *values;     /* [k + M][Dv + r]: of X's values, then of the pairs */
    float *mass;       /* [M]: gamma */
    float *centroid;   /* [D] */
    float *dipole;     /* [r][Dv]: of J */
    float *variances;  /* [M][r] */
    float *scores;     /* [k][r + 1]: of z and of s_jl */
    float *rows;       /* [r + 1][D]: Z' and scale c_j */
} block_gradients;

/* Gradients of one panel of members. */
typedef struct {
    float *q, *dout;           /* [panel][D], [panel][Dv]: the members' rows */
    float *slopes;             /* as the members' scores: of these */
    float *pairs, *tilts;      /* where rows of key clusters begin: scores and slopes */
    float *near, *near_slopes; /* and where rows of near keys do */
    float *d;                  /* [r + 1][panel]: of d and b */
    float *firsts;             /* [M][panel]: a */
    float *bends;              /* [M][panel]: gradients of u */
    float *along;              /* [r][panel]: J dout, and a d */
    float *d_squares;          /* [panel][r]: d^2 / 2 */
    float mass[MAX_PANEL];     /* sum of a */
    float turned[MAX_PANEL];   /* h */
    uint8_t direct[MAX_PANEL]; /* lanes that are computed key by key */
    int directs;
    float *direct_weights, *direct_slopes; /* [KEY_BLOCK], of one such lane */
    float *direct_firsts, *direct_bends;   /* the same: a and gradients of u */
} panel_gradients;

/* Gradients of one block of keys. */
typedef struct {
    float *keys; /* [KEY_BLOCK][D] */
    float *bias; /* [KEY_BLOCK] */
    float *wide; /* [KEY_BLOCK][Dv + r] */
} key_gradients;

struct backward_thread {
    _Alignas(CACHE_LINE) block_gradients block;
    panel_gradients panel;
    key_gradients keys;
};

void sh_shoal_place_backward_threads(shoal_work *own, const shoal_plan *plan,
                                     block_layout *work) {
    const shoal_sizes *size = &own->size;
    const int64_t width = plan->kernels->panel, r = size->dims;
    backward_thread measured;
    own->backward = sh_reserve(work, plan->threads, sizeof *own->backward);
    for (int t = 0; t < plan->threads; t++) {
        backward_thread *thread = own->backward ? &own->backward[t] : &measured;
        block_gradients *block = &thread->block;
        panel_gradients *panel = &thread->panel;
        key_gradients *keys = &thread->keys;
        block->exact_keys = reserve_floats(work, size->k, size->dim);
        block->exact_bias = reserve_floats(work, size->k, 1);
        block->values = reserve_floats(work, size->k + size->M, size->wide);
        block->mass = reserve_floats(work, size->M, 1);
        block->centroid = reserve_floats(work, size->dim, 1);
        block->dipole = reserve_floats(work, r, size->value_dim);
        block->variances = reserve_floats(work, size->M, r);
        block->scores = reserve_floats(work, size->k, r + 1);
        block->rows = reserve_floats(work, r + 1, size->dim);
        panel->q = reserve_floats(work, width, size->dim);
        panel->dout = reserve_floats(work, width, size->value_dim);
        panel->slopes =
            reserve_floats(work, size->k + size->M + 2 * size->near + 1, width);
        panel->d = reserve_floats(work, r + 1, width);
        panel->firsts = reserve_floats(work, size->M, width);
        panel->bends = reserve_floats(work, size->M, width);
        panel->along = reserve_floats(work, r, width);
        panel->d_squares = reserve_floats(work, width, r);
        panel->direct_weights = reserve_floats(work, KEY_BLOCK, 1);
        panel->direct_slopes = reserve_floats(work, KEY_BLOCK, 1);
        panel->direct_firsts = reserve_floats(work, KEY_BLOCK, 1);
        panel->direct_bends = reserve_floats(work, KEY_BLOCK, 1);
        keys->keys = reserve_floats(work, KEY_BLOCK, size->dim);
        keys->bias = reserve_floats(work, KEY_BLOCK, 1);
        keys->wide = reserve_floats(work, KEY_BLOCK, size->wide);
    }
}

/* ---- What goes to rows ------------------------------------------------------------- */

/* Forward's results, where gradients come from and where they go. */
typedef struct {
    const shoal_head *head;
    shoal_clusters *clusters;
    const shoal_sums *sums;
    const shoal_moments *moments;
    const shoal_choices *choices;
    head_gradients *gradients;
    row_view out, dout, dq, dk, dv;
} backward_job;

static void add_row(row_view to, int64_t l, float factor, const float *from, int n) {
    if (to.data)
        add_scaled(to.data + l * to.stride, factor, from, n);
}

/* What a score's gradient is for its key's bias. */
static void add_bias_slope(const shoal_head *head, int64_t l, float slope) {
    if (head->masks.dkey_bias)
        head->masks.dkey_bias[l * head->masks.dkey_bias_step] += slope;
}

/* slopes [count][width] times scale: gradients of keys' biases, summed over lanes. */
static void sum_bias_slopes(const shoal_head *head, const float *slopes, int width,
                            int lanes, int count, float *sums) {
    const float by = 1 / head->scale;
    if (head->masks.dkey_bias)
        head->kernels->spread(slopes, width, lanes, &by, 0, 1, count, sums, 1);
}

/* ---- A query that forward computed key by key -------------------------------------- */

/* Keys first .. of the lane's query: weights in the rest, by the centroid's scores,
   tilted, and gradients of these scores; 0 for keys of X and hidden ones. A near key has
   no weight here, but a part in the mass of the dipole. */
static void weigh_directly(const backward_job *job, const shoal_members *members,
                           int lane, int64_t first, int count,
                           const panel_gradients *panel) {
    const shoal_head *head = job->head;
    const shoal_block *block = members->block;
    const row_view q = head->view.q, k = head->view.k, v = head->view.v;
    const int Dv = head->size.value_dim, near = head->size.near;
    const int width = members->panel->width;
    const int64_t i = members->queries[lane];
    float *weights = panel->direct_weights, *slopes = panel->direct_slopes;
    head->kernels->two_dots(k.data + first * k.stride, k.stride, count, head->size.dim,
                            q.data + i * q.stride,
                            job->clusters->centroids + block->j * head->size.dim, slopes,
                            weights);
    head->kernels->dots(Dv, count, v.data + first * v.stride, v.stride,
                        panel->dout + (int64_t)lane * Dv, false, slopes);
    for (int a = 0; a < count; a++) {
        const int64_t l = first + a, m = job->clusters->of_keys[l];
        const int64_t at = m * width + lane;
        const int exact = m < 0 || bit_of(block->is_exact, l);
        const float score = head->scale * weights[a] + (exact ? 0 : members->tilts[at]) +
                            key_bias_of(head, l);
        const float plain = exact ? 0 : expf(score - job->choices->log_sums[i]);
        const float there = near > 0 && llabs(l - i) <= near ? 0 : plain;
        const float more = exact ? 1 : 1 + members->bends[at];
        panel->direct_firsts[a] = !exact && block->weighted[m] ? plain : 0;
        panel->direct_bends[a] = there * (slopes[a] - members->panel->delta[lane]);
        weights[a] = there * more;
        slopes[a] = panel->direct_bends[a] * more +
                    panel->direct_firsts[a] * panel->turned[lane];
    }
}

/* The lane's a and du. */
static void direct_bends(const backward_job *job, const shoal_members *members, int lane,
                         const panel_gradients *panel) {
    const int64_t S = job->head->view.keys, width = members->panel->width;
    for (int64_t first = 0; first < S; first += KEY_BLOCK) {
        const int count = (int)min(KEY_BLOCK, S - first);
        weigh_directly(job, members, lane, first, count, panel);
        for (int a = 0; a < count; a++) {
            const int64_t m = job->clusters->of_keys[first + a];
            if (m < 0)
                continue;
            panel->firsts[m * width + lane] += panel->direct_firsts[a];
            panel->bends[m * width + lane] += panel->direct_bends[a];
        }
    }
}

/* Their part of all keys' and the centroid's gradients. */
static void direct_scatter(const backward_job *job, const shoal_members *members,
                           int lane, const panel_gradients *panel, float *grad_centroid) {
    const shoal_head *head = job->head;
    const row_view k = head->view.k;
    const int dim = head->size.dim, Dv = head->size.value_dim;
    const float *c = job->clusters->centroids + members->block->j * dim;
    const float *dout = panel->dout + (int64_t)lane * Dv;
    for (int64_t first = 0; first < head->view.keys; first += KEY_BLOCK) {
        const int count = (int)min(KEY_BLOCK, head->view.keys - first);
        weigh_directly(job, members, lane, first, count, panel);
        for (int a = 0; a < count; a++) {
            add_bias_slope(head, first + a, panel->direct_slopes[a]);
            panel->direct_slopes[a] *= head->scale;
            add_row(job->dv, first + a, panel->direct_weights[a], dout, Dv);
            add_row(job->dk, first + a, panel->direct_slopes[a], c, dim);
        }
        head->kernels->sum_rows(k.data + first * k.stride, k.stride, NULL,
                                panel->direct_slopes, count, dim, members->row);
        add_scaled(grad_centroid, 1, members->row, dim);
    }
}

/* ---- One panel of members ---------------------------------------------------------- */

static void gather_rows(row_view from, const int32_t *order, int count, int dim,
                        float *to) {
    for (int i = 0; i < count; i++)
        memcpy(to + (int64_t)i * dim, from.data + order[i] * from.stride,
               (size_t)dim * sizeof *to);
}

static void load_gradients(const backward_job *job, const shoal_members *members,
                           panel_gradients *own) {
    const shoal_head *head = job->head;
    const query_panel *panel = members->panel;
    const int32_t *queries = members->queries;
    const int Dv = head->size.value_dim, r = head->size.dims;
    const int64_t exact = (int64_t)members->block->count * panel->width;
    own->pairs = members->scores + exact;
    own->near = own->pairs + head->size.M * panel->width;
    own->tilts = own->slopes + exact;
    own->near_slopes = own->tilts + head->size.M * panel->width;
    gather_rows(head->view.q, queries, panel->count, head->size.dim, own->q);
    gather_rows(job->dout, queries, panel->count, Dv, own->dout);
    head->kernels->pack(own->dout, Dv, NULL, panel->count, panel->width, Dv, 1,
                        panel->grad_out);
    head->kernels->unpack(members->d, panel->count, panel->width, r, NULL, NULL, 0,
                          members->d_rows, r, NULL);
    for (int i = 0; i < panel->count * r; i++)
        own->d_squares[i] = members->d_rows[i] * members->d_rows[i] / 2;
    for (int i = 0; i < panel->width; i++) {
        const int live = i < panel->count;
        /* Lanes without a query have no weight. */
        panel->largest[i] = live ? job->choices->log_sums[queries[i]] : FLT_MAX / 2;
        panel->inverse[i] = 1;
        panel->delta[i] = live ? ordered_dot(own->dout + (int64_t)i * Dv,
                                             job->out.data + queries[i] * job->out.stride,
                                             Dv)
                               : 0;
    }
}

/* Near keys: scores become weights, and slopes gradients of scores; in `hidden` and its
   slopes what they have in the rest. */
static void weigh_near(const shoal_head *head, const shoal_members *members,
                       const panel_gradients *own) {
    const row_view v = head->view.v;
    const query_panel *panel = members->panel;
    const int width = panel->width, Dv = head->size.value_dim, near = members->near;
    float *slopes = own->near_slopes;
    memset(slopes, 0, sizeof(float) * (size_t)(near * width));
    for (int i = 0; i < panel->count; i++) {
        const int64_t first = near_first(head, members->queries[i]);
        const int64_t count = near_last(head, members->queries[i]) - first;
        head->kernels->dots(Dv, count, v.data + first * v.stride, v.stride,
                            own->dout + (int64_t)i * Dv, false, members->near_weights);
        for (int64_t a = 0; a < count; a++)
            slopes[a * width + i] = members->near_weights[a];
    }
    memcpy(members->hidden_slopes, slopes, sizeof(float) * (size_t)(near * width));
    head->kernels->softmax_slope(own->near, slopes, width, near, panel->largest,
                                 panel->inverse, panel->delta, 1);
    head->kernels->softmax_slope(members->hidden, members->hidden_slopes, width, near,
                                 panel->largest, panel->inverse, panel->delta, 1);
}

/* What near keys have in the rest is taken from the gradients of u; and second-order
   weights of what they have there. */
static void bend_near(const backward_job *job, const shoal_members *members,
                      const panel_gradients *own) {
    const int width = members->panel->width;
    for (int i = 0; i < members->panel->count; i++) {
        const int64_t first = near_first(job->head, members->queries[i]);
        const int64_t last = near_last(job->head, members->queries[i]);
        for (int64_t l = first; l < last; l++)
            if (job->clusters->of_keys[l] >= 0)
                own->bends[job->clusters->of_keys[l] * width + i] -=
                    members->hidden_slopes[(l - first) * width + i];
    }
    for (int i = 0; i < members->near * width; i++) {
        members->hidden[i] *= 1 + members->hidden_bends[i];
        members->hidden_slopes[i] *= 1 + members->hidden_bends[i];
    }
}

/* J dout and h. */
static void turn_members(const backward_job *job, const shoal_members *members,
                         panel_gradients *own) {
    const int width = members->panel->width, r = job->head->size.dims;
    const int Dv = job->head->size.value_dim;
    memset(own->turned, 0, sizeof own->turned);
    memset(own->along, 0, sizeof(float) * (size_t)(r * width));
    if (!job->head->has_moments)
        return;
    job->head->kernels->score(members->panel->grad_out, width, Dv,
                              job->moments->dipoles + members->block->j * r * Dv, Dv, r,
                              own->along);
    job->head->kernels->dot_columns(members->d, own->along, width, r, own->turned);
}

/* Scores become weights, and slopes gradients of scores; those of key clusters are
   gradients of tilts. */
static void weigh_members(const backward_job *job, const shoal_members *members,
                          panel_gradients *own) {
    const shoal_head *head = job->head;
    const kernel_table *kernels = head->kernels;
    const shoal_block *block = members->block;
    const query_panel *panel = members->panel;
    const int width = panel->width, Dv = head->size.value_dim, M = (int)head->size.M;
    float *tilts = own->tilts;
    turn_members(job, members, own);
    kernels->score_at(panel->grad_out, width, Dv, head->view.v.data, head->view.v.stride,
                      block->keys, block->count, own->slopes);
    kernels->score(panel->grad_out, width, Dv, block->rest, head->size.wide, M,
                   own->bends);
    kernels->softmax_slope(members->scores, own->slopes, width, block->count,
                           panel->largest, panel->inverse, panel->delta, head->scale);
    kernels->softmax_slope(own->pairs, own->bends, width, M, panel->largest,
                           panel->inverse, panel->delta, 1);
    for (int m = 0; m < M; m++)
        for (int i = m * width; i < (m + 1) * width; i++) {
            own->firsts[i] = block->weighted[m] ? own->pairs[i] : 0;
            own->pairs[i] *= 1 + members->bends[i];
        }
    if (members->near > 0)
        weigh_near(head, members, own);
    /* Lanes whose rest was found by too large a subtraction. */
    float strain[MAX_PANEL] = {0};
    head->kernels->mix(own->pairs, width, members->block->strain, 1, M, 1, NULL, strain);
    own->directs = 0;
    for (int i = 0; i < width; i++) {
        own->direct[i] = i < panel->count && strain[i] > SHOAL_STRAIN;
        own->directs += own->direct[i];
        if (own->direct[i])
            sh_shoal_direct_tilts(head, job->clusters, members, i);
        for (int m = 0; m < M && own->direct[i]; m++)
            own->pairs[m * width + i] = own->firsts[m * width + i] =
                own->bends[m * width + i] = 0;
        for (int a = 0; a < members->near && own->direct[i]; a++)
            members->hidden[a * width + i] = members->hidden_slopes[a * width + i] = 0;
    }
    if (members->near > 0)
        bend_near(job, members, own);
    for (int i = 0; i < panel->count && own->directs > 0; i++)
        if (own->direct[i])
            direct_bends(job, members, i, own);
    memset(own->mass, 0, sizeof own->mass);
    for (int m = 0; m < M; m++)
        for (int i = 0; i < width; i++) {
            const int at = m * width + i;
            own->mass[i] += own->firsts[at];
            tilts[at] = (1 + members->bends[at]) * own->bends[at] +
                        own->firsts[at] * own->turned[i];
            own->bends[at] = block->weighted[m] ? own->bends[at] : 0; /* u is 0 */
        }
}

/* Near keys' part of dq, and of the centroid's gradient. */
static void near_queries(const backward_job *job, const shoal_members *members, int lane,
                         const panel_gradients *own, float *grad_centroid) {
    const shoal_head *head = job->head;
    const row_view k = head->view.k;
    const int width = members->panel->width, dim = head->size.dim;
    const int64_t i = members->queries[lane], first = near_first(head, i);
    const int64_t count = near_last(head, i) - first;
    const float *start = k.data + first * k.stride;
    float *weights = members->near_weights;
    for (int64_t a = 0; a < count; a++)
        weights[a] = head->scale * own->near_slopes[a * width + lane];
    head->kernels->sum_rows(start, k.stride, NULL, weights, count, dim, members->row);
    add_row(job->dq, i, 1, members->row, dim);
    for (int64_t a = 0; a < count; a++)
        weights[a] = head->scale * members->hidden_slopes[a * width + lane];
    head->kernels->sum_rows(start, k.stride, NULL, weights, count, dim, members->row);
    add_scaled(grad_centroid, -1, members->row, dim);
}

/* The gradient of d by way of u and of the dipole. What was J dout is a d after it. */
static void bend_queries(const backward_job *job, const shoal_members *members,
                         const panel_gradients *own) {
    const int width = members->panel->width, r = job->head->size.dims;
    float *slopes = members->squares; /* of d^2 / 2 */
    memset(slopes, 0, sizeof(float) * (size_t)(r * width));
    job->head->kernels->mix(own->bends, width, job->moments->variances, r,
                            (int)job->head->size.M, r, NULL, slopes);
    for (int d = 0; d < r; d++)
        for (int i = 0; i < width; i++) {
            const int at = d * width + i;
            own->d[at] += members->d[at] * slopes[at] + own->mass[i] * own->along[at];
            own->along[at] = own->mass[i] * members->d[at];
        }
}

/* dq and the centroid's gradient, from tilts, exact keys and near keys. */
static void query_gradients(const backward_job *job, const shoal_members *members,
                            const panel_gradients *own, float *grad_centroid) {
    const shoal_head *head = job->head;
    const kernel_table *kernels = head->kernels;
    const shoal_block *block = members->block;
    const query_panel *panel = members->panel;
    const float *projection = job->clusters->projection, *tilts = own->tilts;
    const int width = panel->width, r = head->size.dims, dim = head->size.dim;
    const int M = (int)head->size.M;
    memset(own->d, 0, sizeof(float) * (size_t)((r + 1) * width));
    kernels->mix(tilts, width, block->rest + head->size.value_dim, head->size.wide, M, r,
                 NULL, own->d);
    for (int m = 0; m < M; m++)
        for (int i = 0; i < width; i++)
            own->d[r * width + i] += tilts[m * width + i];
    if (head->has_moments)
        bend_queries(job, members, own);
    for (int d = 0; d <= r; d++) {
        float sum = 0;
        for (int i = 0; i < width; i++) {
            own->d[d * width + i] *= head->scale;
            sum += i < panel->count ? own->d[d * width + i] : 0;
        }
        add_scaled(grad_centroid, -sum, projection + (int64_t)d * dim, dim);
    }
    if (job->dq.data) {
        memset(panel->grad_q, 0, sizeof(float) * (size_t)(dim * width));
        kernels->mix_at(own->slopes, width, head->view.k.data, head->view.k.stride,
                        block->keys, block->count, dim, panel->grad_q);
        kernels->mix(own->d, width, projection, dim, r + 1, dim, NULL, panel->grad_q);
        kernels->unpack(panel->grad_q, panel->count, width, dim, NULL, NULL, 0,
                        job->dq.data, job->dq.stride, members->queries);
    }
    for (int i = 0; i < panel->count && members->near > 0; i++)
        near_queries(job, members, i, own, grad_centroid);
}

/* What the panel adds to the block's sums. */
static void add_to_block(const shoal_head *head, const shoal_members *members,
                         const panel_gradients *own, const block_gradients *to) {
    const kernel_table *kernels = head->kernels;
    const query_panel *panel = members->panel;
    const int width = panel->width, live = panel->count, dim = head->size.dim;
    const int Dv = head->size.value_dim, wide = head->size.wide, r = head->size.dims;
    const int M = (int)head->size.M, count = members->block->count;
    kernels->spread(own->slopes, width, live, own->q, dim, dim, count, to->exact_keys,
                    dim);
    sum_bias_slopes(head, own->slopes, width, live, count, to->exact_bias);
    kernels->spread(members->scores, width, live, own->dout, Dv, Dv, count + M,
                    to->values, wide);
    kernels->spread(own->tilts, width, live, members->d_rows, r, r, M,
                    to->values + (int64_t)count * wide + Dv, wide);
    for (int m = 0; m < M; m++)
        for (int i = 0; i < live; i++)
            to->mass[m] += own->pairs[m * width + i] * panel->delta[i] -
                           (own->direct[i] ? 0 : own->firsts[m * width + i]) *
                               own->turned[i];
    if (!head->has_moments)
        return;
    kernels->spread(own->along, width, live, own->dout, Dv, Dv, r, to->dipole, Dv);
    kernels->spread(own->bends, width, live, own->d_squares, r, r, M, to->variances, r);
}

/* In turn: near keys' rows of dk and dv, and all keys' of queries that are computed key
   by key. */
static void scatter_near(const backward_job *job, const shoal_members *members,
                         const panel_gradients *own, float *grad_centroid) {
    const shoal_head *head = job->head;
    const int width = members->panel->width, dim = head->size.dim;
    const int Dv = head->size.value_dim;
    const float *c = job->clusters->centroids + members->block->j * dim;
    for (int i = 0; i < members->panel->count && members->near > 0; i++) {
        const int64_t first = near_first(head, members->queries[i]);
        const int64_t last = near_last(head, members->queries[i]);
        for (int64_t l = first; l < last; l++) {
            const int64_t at = (l - first) * width + i;
            const float slope = own->near_slopes[at], hidden = members->hidden_slopes[at];
            add_row(job->dv, l, own->near[at] - members->hidden[at],
                    own->dout + (int64_t)i * Dv, Dv);
            add_row(job->dk, l, head->scale * slope, own->q + (int64_t)i * dim, dim);
            add_row(job->dk, l, -head->scale * hidden, c, dim);
            add_bias_slope(head, l, slope - hidden);
        }
    }
    for (int i = 0; i < members->panel->count && own->directs > 0; i++)
        if (own->direct[i])
            direct_scatter(job, members, i, own, grad_centroid);
}

/* ---- One block --------------------------------------------------------------------- */

/* The pairs' gradients become those of the sums that were left: G, Q and gamma. The pass
   over all keys will treat X as part of the rest: here that is taken back. row: [D],
   scratch. */
static void finish_block(const shoal_head *head, const shoal_clusters *clusters,
                         const shoal_block *block, const block_gradients *own,
                         float *row) {
    const int Dv = head->size.value_dim, wide = head->size.wide;
    const int r = head->size.dims, dim = head->size.dim, count = block->count;
    const row_view k = head->view.k, v = head->view.v;
    float *pairs = own->values + (int64_t)count * wide;
    for (int64_t m = 0; m < head->size.M; m++) {
        const float inverse = block->left_mass[m] > 0 ? 1 / block->left_mass[m] : 0;
        for (int d = 0; d < (block->weighted[m] ? wide : Dv); d++)
            pairs[m * wide + d] *= inverse;
        own->mass[m] *= inverse;
        if (block->weighted[m])
            own->mass[m] +=
                ordered_dot(pairs + m * wide + Dv, block->rest + m * wide + Dv, r);
    }
    for (int x = 0; x < count; x++) {
        const int64_t m = block->clusters[x], l = block->keys[x];
        const float *pair = pairs + m * wide;
        float *grad = own->values + (int64_t)x * wide;
        float *scores = own->scores + (int64_t)x * (r + 1);
        const float weight = -block->weights[x];
        float slope = ordered_dot(pair, v.data + l * v.stride, Dv);
        if (block->weighted[m])
            slope += ordered_dot(pair + Dv, clusters->coordinates + l * r, r);
        const float dscore = -weight * (slope - own->mass[m]);
        own->exact_bias[x] += dscore;
        add_scaled(grad, -weight, pair, block->weighted[m] ? wide : Dv);
        memcpy(scores, grad + Dv, sizeof(float) * (size_t)r);
        scores[r] = block->scores[x] = head->scale * dscore;
    }
    memcpy(own->rows, clusters->dual, sizeof(float) * (size_t)(r * dim));
    memcpy(own->rows + (int64_t)r * dim, clusters->centroids + block->j * dim,
           sizeof(float) * (size_t)dim);
    head->kernels->spread(own->scores, r + 1, r + 1, own->rows, dim, dim, count,
                          own->exact_keys, dim);
    head->kernels->sum_rows(k.data, k.stride, block->keys, block->scores, count, dim,
                            row);
    add_scaled(own->centroid, 1, row, dim);
}

/* Blocks share keys and clusters, so they add to them one after another, in order. */
static void scatter_block(const backward_job *job, const shoal_block *block,
                          const block_gradients *own) {
    const shoal_head *head = job->head;
    const head_gradients *to = job->gradients;
    const int Dv = head->size.value_dim, wide = head->size.wide, dim = head->size.dim;
    const int r = head->size.dims;
    const int64_t M = head->size.M, at = block->j * M;
    for (int x = 0; x < block->count; x++) {
        const int64_t l = block->keys[x];
        add_row(job->dk, l, 1, own->exact_keys + (int64_t)x * dim, dim);
        add_row(job->dv, l, 1, own->values + (int64_t)x * wide, Dv);
        add_bias_slope(head, l, own->exact_bias[x]);
    }
    for (int64_t m = 0; m < M; m++) {
        const float *row = own->values + (block->count + m) * wide;
        add_scaled(to->sums + (at + m) * wide, 1, row, block->weighted[m] ? wide : Dv);
        if (!block->weighted[m])
            add_scaled(to->plain + m * r, 1, row + Dv, r);
        to->mass[at + m] += own->mass[m];
    }
    add_scaled(to->centroids + block->j * dim, 1, own->centroid, dim);
    if (!head->has_moments)
        return;
    add_scaled(to->dipoles + block->j * r * Dv, 1, own->dipole, r * Dv);
    add_scaled(to->variances, 1, own->variances, (int)M * r);
}

static void block_task(void *shared, int64_t b, int thread) {
    const backward_job *job = shared;
    const shoal_head *head = job->head;
    const shoal_clusters *clusters = job->clusters;
    shoal_block *block = &head->work->blocks[thread];
    shoal_members *members = &head->work->members[thread];
    block_gradients *own = &head->work->backward[thread].block;
    panel_gradients *panel = &head->work->backward[thread].panel;
    /* The cluster that block b belongs to. */
    int64_t low = 0, high = clusters->queries.used;
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        *(clusters->block_offsets[middle] <= b ? &low : &high) = middle;
    }
    const int64_t j = low, M = head->size.M;
    const int64_t first = clusters->queries.offsets[j] +
                          (b - clusters->block_offsets[j]) * head->size.block;
    const int64_t last = min(first + head->size.block, clusters->queries.offsets[j + 1]);
    sh_shoal_load_block(head, clusters, job->sums, job->choices, j, b, block);
    const int count = block->count;
    memset(own->exact_keys, 0, sizeof(float) * (size_t)(count * head->size.dim));
    memset(own->values, 0, sizeof(float) * (size_t)((count + M) * head->size.wide));
    memset(own->exact_bias, 0, sizeof(float) * (size_t)count);
    memset(own->mass, 0, sizeof(float) * (size_t)M);
    memset(own->centroid, 0, sizeof(float) * (size_t)head->size.dim);
    memset(own->dipole, 0,
           sizeof(float) * (size_t)(head->size.dims * head->size.value_dim));
    memset(own->variances, 0, sizeof(float) * (size_t)(M * head->size.dims));
    for (int64_t at = first; at < last; at += members->panel->count) {
        sh_shoal_load_members(head, clusters, j, at, last, members);
        sh_shoal_score_members(head, clusters, job->moments, members);
        load_gradients(job, members, panel);
        weigh_members(job, members, panel);
        query_gradients(job, members, panel, own->centroid);
        add_to_block(head, members, panel, own);
        if (at + members->panel->count >= last)
            finish_block(head, clusters, block, own, members->row);
        sh_await_turn(job->gradients->turn, (int)b);
        scatter_near(job, members, panel, own->centroid);
    }
    scatter_block(job, block, own);
    sh_pass_turn(job->gradients->turn, (int)b);
    sh_shoal_leave_block(block);
}

/* ---- The centroids' pass ----------------------------------------------------------- */

/* Some keys of cluster m for one panel of centroids. */
static void keys_backward(const backward_job *job, int64_t m, const key_block *keys,
                          int count, query_panel *panel, dense_scratch *dense,
                          const key_gradients *own) {
    const shoal_head *head = job->head;
    const kernel_table *kernels = head->kernels;
    const int width = panel->width, dim = head->size.dim, wide = head->size.wide;
    const int64_t M = head->size.M;
    float *scores = dense->scores, *slopes = dense->slopes;
    kernels->score(panel->queries, width, dim, keys->rows, dim, count, scores);
    if (head->masks.key_bias)
        kernels->add_to_rows(keys->bias, 1, width, count, scores);
    kernels->score(panel->grad_out, width, wide, keys->wide, wide, count, slopes);
    kernels->softmax_slope(scores, slopes, width, count, panel->largest, panel->inverse,
                           panel->delta, head->scale);
    kernels->mix(slopes, width, keys->rows, dim, count, dim, NULL, panel->grad_q);
    kernels->spread(scores, width, panel->count,
                    job->gradients->sums + (panel->first * M + m) * wide, M * wide, wide,
                    count, own->wide, wide);
    kernels->spread(slopes, width, panel->count,
                    job->clusters->centroids + panel->first * dim, dim, dim, count,
                    own->keys, dim);
    sum_bias_slopes(head, slopes, width, panel->count, count, own->bias);
}

/* Coordinates' gradients become the keys'; rows go to their places. */
static void scatter_keys(const backward_job *job, int64_t m, int64_t first, int count,
                         int with_plain, const key_gradients *own) {
    const shoal_head *head = job->head;
    const int dim = head->size.dim, wide = head->size.wide;
    const int Dv = head->size.value_dim, r = head->size.dims;
    const grouping *keys = &job->clusters->keys;
    const float share = 1 / (float)(keys->offsets[m + 1] - keys->offsets[m]);
    for (int i = 0; i < count && with_plain; i++)
        add_scaled(own->wide + (int64_t)i * wide + Dv, share,
                   job->gradients->plain + m * r, r);
    head->kernels->spread(own->wide + Dv, wide, r, job->clusters->dual, dim, dim, count,
                          own->keys, dim);
    for (int i = 0; i < count; i++) {
        const int64_t l = keys->order[first + i];
        add_row(job->dk, l, 1, own->keys + (int64_t)i * dim, dim);
        add_row(job->dv, l, 1, own->wide + (int64_t)i * wide, Dv);
        add_bias_slope(head, l, own->bias[i]);
    }
}

/* All keys of a chunk, for one batch of panels after another. */
static void chunk_task(void *shared, int64_t chunk, int thread) {
    const backward_job *job = shared;
    const shoal_clusters *clusters = job->clusters;
    const kernel_table *kernels = job->head->kernels;
    const key_gradients *own = &job->head->work->backward[thread].keys;
    dense_scratch *dense = &job->head->work->dense[thread];
    const int64_t used = clusters->queries.used, batch = sh_dense_block(kernels);
    const int dim = job->head->size.dim, wide = job->head->size.wide;
    query_panel *panel = dense->panels;
    for (int64_t first = 0; first < used; first += batch) {
        const int panels = sh_dense_cut(dense, kernels, first, min(first + batch, used));
        atomic_int *turn = &job->gradients->turns[first / batch];
        for (int p = 0; p < panels; p++) {
            kernels->pack(clusters->centroids + panel[p].first * dim, dim, NULL,
                          panel[p].count, panel[p].width, dim, job->head->scale,
                          panel[p].queries);
            memset(panel[p].grad_q, 0, sizeof(float) * (size_t)(dim * panel[p].width));
        }
        for (int32_t m = clusters->chunk_clusters[chunk];
             m < clusters->chunk_clusters[chunk + 1]; m++) {
            const int64_t last = clusters->keys.offsets[m + 1];
            for (int p = 0; p < panels; p++) {
                const int64_t M = job->head->size.M;
                const int64_t place = panel[p].first * M + m;
                job->head->kernels->pack(job->gradients->sums + place * wide, M * wide,
                                         NULL, panel[p].count, panel[p].width, (int)wide,
                                         1, panel[p].grad_out);
                for (int i = 0; i < panel[p].width; i++) {
                    const int live = i < panel[p].count;
                    panel[p].largest[i] = live ? job->sums->top[place + i * M] : 0;
                    panel[p].delta[i] = live ? job->gradients->mass[place + i * M] : 0;
                    panel[p].inverse[i] = live ? 1 : 0;
                }
            }
            for (int64_t at = clusters->keys.offsets[m]; at < last; at += KEY_BLOCK) {
                const int some = (int)min(KEY_BLOCK, last - at);
                const key_block *keys =
                    sh_shoal_gather_keys(job->head, clusters, at, some, thread);
                memset(own->keys, 0, sizeof(float) * (size_t)(some * dim));
                memset(own->wide, 0, sizeof(float) * (size_t)(some * wide));
                memset(own->bias, 0, sizeof(float) * (size_t)some);
                for (int p = 0; p < panels; p++)
                    keys_backward(job, m, keys, some, &panel[p], dense, own);
                scatter_keys(job, m, at, some, first == 0, own);
            }
        }
        sh_await_turn(turn, (int)chunk);
        for (int p = 0; p < panels; p++)
            kernels->unpack(panel[p].grad_q, panel[p].count, panel[p].width, dim, NULL,
                            NULL, 1, job->gradients->centroids + panel[p].first * dim,
                            dim, NULL);
        sh_pass_turn(turn, (int)chunk);
    }
}

/* ---- One head ---------------------------------------------------------------------- */

enum { MEMBER_TASK = 1024 };

/* A centroid's gradient reaches each member divided by the cluster's size. */
static void member_task(void *shared, int64_t task, int thread) {
    const backward_job *job = shared;
    const int32_t *offsets = job->clusters->queries.offsets;
    const int64_t last = min((task + 1) * MEMBER_TASK, job->head->view.queries);
    const int dim = job->head->size.dim;
    (void)thread;
    for (int64_t i = task * MEMBER_TASK; i < last; i++) {
        const int64_t j = job->clusters->of_queries[i];
        add_row(job->dq, i, 1 / (float)(offsets[j + 1] - offsets[j]),
                job->gradients->centroids + j * dim, dim);
    }
}

/* Forward's moments and dipoles, and room for their gradients. */
static void restore_moments(const backward_job *job, team workers) {
    const shoal_sizes *size = &job->head->size;
    const int64_t used = job->clusters->queries.used;
    sh_shoal_find_moments(job->head, job->clusters, job->moments, workers);
    for (int64_t j = 0; j < used; j++)
        sh_shoal_find_dipole(job->head, job->moments, job->sums->shares + j * size->M, j);
    memset(job->gradients->dipoles, 0,
           sizeof(float) * (size_t)(used * size->dims * size->value_dim));
    memset(job->gradients->variances, 0, sizeof(float) * (size_t)(size->M * size->dims));
}

static void backward_head(backward_job *job, team workers) {
    const shoal_sizes *size = &job->head->size;
    head_gradients *gradients = job->gradients;
    sh_shoal_restore_clusters(job->head, job->clusters, workers);
    const int64_t used = job->clusters->queries.used;
    const size_t sums = (size_t)(used * size->M);
    memset(gradients->sums, 0, sizeof(float) * sums * (size_t)size->wide);
    memset(gradients->mass, 0, sizeof(float) * sums);
    memset(gradients->plain, 0, sizeof(float) * (size_t)(size->M * size->dims));
    memset(gradients->centroids, 0, sizeof(float) * (size_t)(used * size->dim));
    if (job->head->has_moments)
        restore_moments(job, workers);
    atomic_init(gradients->turn, 0);
    for (int64_t i = 0; i < ceil_divide(used, sh_dense_block(job->head->kernels)); i++)
        atomic_init(&gradients->turns[i], 0);
    sh_team_run(workers, job->clusters->block_offsets[used], block_task, job);
    sh_team_run(workers, job->clusters->chunks, chunk_task, job);
    if (job->head->has_moments)
        sh_shoal_moments_backward(job->head, job->clusters, job->sums, job->moments,
                                  gradients, job->dk, job->dv, workers);
    if (job->dq.data)
        sh_team_run(workers, ceil_divide(job->head->view.queries, MEMBER_TASK),
                    member_task, job);
}

/* One key/value head, with the query heads that share it. */
void sh_shoal_backward(const attention_call *call, int64_t unit, int slot, team workers) {
    const shoal_problem *problem = &call->plan->problem;
    const shoal_gradients *gradients = call->gradients;
    const kv_head_view own = sh_start_kv_head(call, unit);
    shoal_slot *at = &((shoal_work *)call->plan->work)->slots[slot];
    for (int64_t h = own.first; h < own.last; h++) {
        shoal_head head = sh_shoal_head_of(call, own.b, h, at);
        head.size.k = at->clusters.live[3];
        const int64_t n = head.view.queries, S = head.seen;
        backward_job job =
            {.head = &head,
             .clusters = &at->clusters,
             .sums = &at->sums,
             .moments = &at->moments,
             .choices = &at->choices,
             .gradients = &at->gradients,
             .out = sh_query_rows(call, gradients->out, problem->out_strides, own.b, h),
             .dout = sh_query_rows(call, gradients->dout, problem->out_strides, own.b, h),
             .dq = sh_query_rows(call, gradients->dq, problem->q_strides, own.b, h),
             .dk = own.dk,
             .dv = own.dv};
        sh_clear_rows(job.dq, S > 0 ? n : 0, head.view.query_rows, problem->dim);
        if (n > 0 && S > 0)
            backward_head(&job, workers);
    }
}
