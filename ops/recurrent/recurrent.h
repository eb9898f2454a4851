#pragma once
// Recurrent layers over a sequence x (steps >= 1, n, in): one layer in one direction, from the state (n, hidden) before
// the first step. Floating types; float16 and bfloat16 are computed in float32. Functions throw InvalidArgument "[rnn]
// ..." and so on.

#include <paceline/op.h>

namespace paceline {

// The weights of a layer. Gates stand one after the other along axis 0.
struct RecurrentWeights {
  NDArray of_x, of_state;                // (gates hidden, in) and (gates hidden, hidden)
  NDArray bias_x = {}, bias_state = {};  // (gates hidden) each, or none
};

// The argument `reverse` of the functions.
struct RecurrentAttributes {
  bool reverse = false;  // from the last step to the first
};

// What a layer gives.
struct RecurrentResult {
  NDArray states, last;      // after each step (steps, n, hidden), and after the step that was made last (n, hidden)
  NDArray last_memory = {};  // of lstm(), after the step that was made last (n, hidden)
};

// The state is tanh(of_x x + bias_x + of_state state + bias_state)
RecurrentResult rnn(const NDArray& x, const NDArray& state, const RecurrentWeights& weights, bool reverse = false);
// rnn() with relu instead of tanh.
RecurrentResult rnn_relu(const NDArray& x, const NDArray& state, const RecurrentWeights& weights, bool reverse = false);
// Long short-term memory. The gates are input, forget, cell, output. `memory`, before the first step, is (n, hidden).
RecurrentResult lstm(const NDArray& x, const NDArray& state, const NDArray& memory, const RecurrentWeights& weights,
                     bool reverse = false);
// Gated recurrent units. The gates are reset, update, new. The reset gate acts on of_state state + bias_state.
RecurrentResult gru(const NDArray& x, const NDArray& state, const RecurrentWeights& weights, bool reverse = false);

}  // namespace paceline
