#pragma once
// Modes, staleness policies and codecs of the user's own. They are objects of the user's program. Workers pass them in
// StoreOptions, and servers pass them to serve(). A mode's text names them as it names the library's objects:
// `widening:staleness=sign_of_the_old,compression=int8`.
//
// Servers need every object that the text names. So run your program in every role (launch.py --every-role), or a
// server program of your own that calls serve(). A server that lacks an object refuses the job: at the workers, init()
// then throws InvalidArgument for a mode, and set_optimizer() for a policy or a codec. The examples custom_mode.cc,
// custom_staleness.cc and custom_codec.cc have one object each.

#include <map>
#include <memory>
#include <string>

namespace paceline {

class Codec;
class Mode;
class Staleness;

// The user's objects by name. A name consists of letters, digits and '_', and differs from the names of the library.
// The text can set no options of such an object, because the program makes the object; only `error_feedback` works for
// codecs. The text need not name every object.
struct Extensions {
  std::map<std::string, std::shared_ptr<const Mode>> modes = {};          // mode.h
  std::map<std::string, std::shared_ptr<const Staleness>> policies = {};  // staleness.h; '+' joins a policy to others
  std::map<std::string, std::shared_ptr<const Codec>> codecs = {};        // compression.h

  // Throws InvalidArgument for a wrong name, a name of the library, a null pointer, and a mode whose traits()
  // contradict each other.
  void check() const;
};

}  // namespace paceline
