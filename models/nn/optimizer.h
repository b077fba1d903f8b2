/* Optimizers over the whole arena as one vector, and averages of weights. Everything is
 * elementwise or has one order of sums: threads change nothing.
 *
 * R-Adam (Liu et al. 2020), step t from 1, gradient g, rate a:
 *     m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g g,  m^ = m / (1 - b1^t)
 *     rho_inf = 2 / (1 - b2) - 1,  rho = rho_inf - 2 t b2^t / (1 - b2^t)
 *     rho > 4:  r = sqrt((rho - 4)(rho - 2) rho_inf / ((rho_inf - 4)(rho_inf - 2) rho))
 *               p -= a r m^ / (sqrt(v / (1 - b2^t)) + epsilon)
 *     else      p -= a m^
 * The bound 4 is the publication's; PyTorch has 5.
 *
 * Weight decay is decoupled, p -= a decay p, as in the code published with R-Adam: the
 * paper names that optimizer and a decay of 0.01 and no more, so that is how its setting is
 * read here. `decay_in_gradient` adds decay p to g instead, which is what PyTorch's RAdam
 * and Adam do by default. Every parameter decays. */
#ifndef SHOAL_MODELS_NN_OPTIMIZER_H
#define SHOAL_MODELS_NN_OPTIMIZER_H

#include "models/nn/parameters.h"

typedef enum { OPTIMIZER_RADAM, OPTIMIZER_ADAM } optimizer_kind;

typedef struct {
    optimizer_kind kind;
    double beta1, beta2, epsilon, weight_decay;
    bool decay_in_gradient;
    double rectified_above; /* rho must exceed it for the rectified step; 0: 4 */
} optimizer_settings;

/* The caller's memory, to be saved with a checkpoint; zero before the first step. */
typedef struct {
    float *first, *second; /* [arena->size] each */
    int64_t step;          /* steps taken */
} optimizer_state;

void sh_optimizer_step(const crew *by, const optimizer_settings *settings, double rate,
                       parameters *arena, optimizer_state *state);

/* The gradients' global norm, from a sum in double precision. */
double sh_gradients_norm(const crew *by, const parameters *arena);
/* Scales the gradients so that the norm is at most `limit` (0: no limit); returns the
   norm from before, which is not finite where a gradient is not: then nothing is scaled.
   */
double sh_gradients_clip(const crew *by, parameters *arena, double limit);

/* averaged [size] moves towards the values by 1 - decay: an exponential average. count:
   sets of weights that it holds already; with 0 it becomes a copy. */
void sh_weights_average(const crew *by, const parameters *arena, double decay,
                        int64_t count, float *averaged);

#endif
