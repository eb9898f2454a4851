#pragma once
// A library that is opened at run time, because not every machine has it. Not installed.

#include <paceline/error.h>

#include <dlfcn.h>

#include <initializer_list>
#include <string>

namespace paceline::detail {

class SharedLibrary {
 public:
  // Opens the first of `names`, as for dlopen, that can be. Throws NotAvailable, which calls the library `what`.
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

  // Throws NotAvailable.
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
