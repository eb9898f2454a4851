#pragma once

namespace paceline::detail {

// When the program ends, tasks of the default engine stop before anything that exists by now is torn down: those that
// run are waited for, a few seconds at most, the others never begin. To be called once a library that tasks use has
// made what it destroys at the end.
void rest_before_exit();

}  // namespace paceline::detail
