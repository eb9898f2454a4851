#pragma once
// Recurrent layers over a sequence x (steps >= 1, n, in): one layer in one direction, from the state (n, hidden) before
// the first step. Gates lie one after the other in the weights, of_x (gates hidden, in) and of_state (gates hidden,
// hidden), and in the biases (gates hidden), which may be none. Floating types; float16 and bfloat16 are computed in
// float32. Throw InvalidArgument "[rnn] ...".

#include <paceline/op.h>

namespace paceline {

struct RecurrentWeights {
  NDArray of_x, of_state;
  NDArray bias_x = {}, bias_state = {};
};

struct RecurrentAttributes {
  bool reverse = false;  // from the last step to the first
};

// The state after each step (steps, n, hidden), and the one after the step made last, (n, hidden).
struct RecurrentResult {
  NDArray states, last;
  NDArray last_memory = {};  // of lstm
};

// tanh(of_x x + bias_x + of_state state + bias_state)
RecurrentResult rnn(const NDArray& x, const NDArray& state, const RecurrentWeights& weights, bool reverse = false);
// The same with relu instead of tanh.
RecurrentResult rnn_relu(const NDArray& x, const NDArray& state, const RecurrentWeights& weights, bool reverse = false);
// Gates: input, forget, cell, output. `memory` is (n, hidden).
RecurrentResult lstm(const NDArray& x, const NDArray& state, const NDArray& memory, const RecurrentWeights& weights,
                     bool reverse = false);
// Gates: reset, update, new; the reset gate acts on of_state state + bias_state.
RecurrentResult gru(const NDArray& x, const NDArray& state, const RecurrentWeights& weights, bool reverse = false);

}  // namespace paceline
