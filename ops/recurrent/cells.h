#pragma once
// The mathematics of one step of recurrent layers for one unit, for host and device. `x` and `h` are the gates' sums
// from the input and from the state. forward() writes to `kept` what backward() reads. `dx` and `dh` are the gradients
// of x and h. backward() turns the gradients of the new state and memory into those of the old ones. It leaves out the
// part of them that goes through h. kSums: only x + h matters. Then dh equals dx and is not written.

#include "shared/fast_math.h"

namespace paceline::cells {

template <class A>
PACELINE_HOST_DEVICE inline A logistic(A x) {
  return A(1) / (A(1) + fast_exp(-x));
}

template <bool kRelu>
struct Rnn {
  static constexpr int kGates = 1, kKept = 1;
  static constexpr bool kMemory = false, kSums = true;
  template <class A>
  [[gnu::always_inline]] PACELINE_HOST_DEVICE static void forward(const A* x, const A* h, A* kept, A& state, A&) {
    const A sum = x[0] + h[0];
    state = kRelu ? (sum < A(0) ? A(0) : sum) : fast_tanh(sum);
    kept[0] = kRelu ? (sum <= A(0) ? A(0) : A(1)) : A(1) - state * state;
  }
  template <class A>
  [[gnu::always_inline]] PACELINE_HOST_DEVICE static void backward(const A* kept, A, A, A, A* dx, A*, A& d_state, A&) {
    dx[0] = d_state * kept[0];
    d_state = A(0);
  }
};

struct Lstm {
  static constexpr int kGates = 4, kKept = 4;
  static constexpr bool kMemory = true, kSums = true;
  template <class A>
  [[gnu::always_inline]] PACELINE_HOST_DEVICE static void forward(const A* x, const A* h, A* kept, A& state,
                                                                  A& memory) {
    const A in = kept[0] = logistic(x[0] + h[0]);
    const A forget = kept[1] = logistic(x[1] + h[1]);
    const A cell = kept[2] = fast_tanh(x[2] + h[2]);
    const A out = kept[3] = logistic(x[3] + h[3]);
    memory = forget * memory + in * cell;
    state = out * fast_tanh(memory);
  }
  template <class A>
  [[gnu::always_inline]] PACELINE_HOST_DEVICE static void backward(const A* kept, A, A old_memory, A new_memory, A* dx,
                                                                   A*, A& d_state, A& d_memory) {
    const A in = kept[0], forget = kept[1], cell = kept[2], out = kept[3];
    const A shown = fast_tanh(new_memory);
    const A inner = d_memory + d_state * out * (A(1) - shown * shown);
    dx[0] = inner * cell * in * (A(1) - in);
    dx[1] = inner * old_memory * forget * (A(1) - forget);
    dx[2] = inner * in * (A(1) - cell * cell);
    dx[3] = d_state * shown * out * (A(1) - out);
    d_memory = inner * forget;
    d_state = A(0);
  }
};

struct Gru {
  static constexpr int kGates = 3, kKept = 4;
  static constexpr bool kMemory = false, kSums = false;
  template <class A>
  [[gnu::always_inline]] PACELINE_HOST_DEVICE static void forward(const A* x, const A* h, A* kept, A& state, A&) {
    const A reset = kept[0] = logistic(x[0] + h[0]);
    const A update = kept[1] = logistic(x[1] + h[1]);
    const A fresh = kept[2] = fast_tanh(x[2] + reset * h[2]);
    kept[3] = h[2];
    state = (A(1) - update) * fresh + update * state;
  }
  template <class A>
  [[gnu::always_inline]] PACELINE_HOST_DEVICE static void backward(const A* kept, A old_state, A, A, A* dx, A* dh,
                                                                   A& d_state, A&) {
    const A reset = kept[0], update = kept[1], fresh = kept[2];
    const A inner = d_state * (A(1) - update) * (A(1) - fresh * fresh);
    dx[0] = dh[0] = inner * kept[3] * reset * (A(1) - reset);
    dx[1] = dh[1] = d_state * (old_state - fresh) * update * (A(1) - update);
    dx[2] = inner;
    dh[2] = inner * reset;
    d_state = d_state * update;
  }
};

}  // namespace paceline::cells
