#pragma once
// A library that is opened at run time, because not every machine has it. This header is not installed.

#include <paceline/error.h>

#include <dlfcn.h>

#include <initializer_list>
#include <string>

namespace paceline::detail {

class SharedLibrary {
 public:
  // Tries dlopen() on each of `names` and keeps the first library that opens. Throws NotAvailable where none opens.
  // `what` names the library in the message.
  SharedLibrary(const char* what, std::initializer_list<std::string> names) {
    std::string reason;
    for (const std::string& name : names) {
      name_ = name;
      if ((handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL))) return;
      reason = dlerror();
    }
    throw NotAvailable(str(what, " is not there: ", reason));
  }
  ~SharedLibrary() { dlclose(handle_); }
  SharedLibrary(const SharedLibrary&) = delete;
  SharedLibrary& operator=(const SharedLibrary&) = delete;

  const std::string& name() const { return name_; }

  // Sets `*function` to the function `name` of the library. Throws NotAvailable where the library lacks it.
  template <class Function>
  void find(const char* name, Function** function) const {
    *function = reinterpret_cast<Function*>(dlsym(handle_, name));
    if (!*function) throw NotAvailable(str(name_, " has no ", name));
  }

 private:
  std::string name_;
  void* handle_ = nullptr;
};

}  // namespace paceline::detail
