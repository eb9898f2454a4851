#pragma once
// Modes, staleness policies and codecs of the user's own. They are objects of the user's program, which workers take in
// StoreOptions and servers in serve(). A mode's text names them as it names those of the library:
// `widening:staleness=sign_of_the_old,compression=int8`.
//
// Servers need every object that the text names. So run your program in every role (launch.py --every-role), or a
// server program of your own that calls serve(). A server that lacks the object refuses: init() throws InvalidArgument
// for a mode, set_optimizer() for a policy or a codec. The examples custom_mode.cc, custom_staleness.cc and
// custom_codec.cc have one object each.

#include <map>
#include <memory>
#include <string>

namespace paceline {

class Codec;
class Mode;
class Staleness;

// Objects by name. A name holds letters, digits and '_', and is none of the library's. The text has no options for such
// an object, save `error_feedback` for codecs: the program makes the object as it should be. A text need not name every
// object.
struct Extensions {
  std::map<std::string, std::shared_ptr<const Mode>> modes = {};          // mode.h
  std::map<std::string, std::shared_ptr<const Staleness>> policies = {};  // staleness.h; '+' joins them to others
  std::map<std::string, std::shared_ptr<const Codec>> codecs = {};        // compression.h

  // Throws InvalidArgument for a name that the text could not hold, a name of the library, and a null pointer.
  void check() const;
};

}  // namespace paceline
