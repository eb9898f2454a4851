#pragma once
// A request, tried again where its failure may pass, and otherwise put into a sentence.

#include <functional>
#include <string>

#include "http.h"

namespace paceline::remote {

// The server has no such file.
class NoSuchFile : public IoError {
 public:
  using IoError::IoError;
};

class Attempts {
 public:
  // `what`: "read" or "write".
  Attempts(const char* what, std::string url, const Tick& tick);

  // Makes the request that `make` gives, anew for each attempt, until a good response comes, or a status that `accept`
  // names. Throws IoError, also after so many attempts.
  HttpResponse perform(const std::function<HttpRequest()>& make, int accept = 0);
  // For an attempt that brought something: the count begins anew.
  void made_progress() { failed_ = 0; }
  // Counts a failure and pauses. Throws IoError where it was the last attempt.
  void failed(const std::string& reason, double least_seconds = 0);
  int made() const { return made_; }

  [[noreturn]] void refuse(const std::string& reason) const;

 private:
  const char* what_;
  const std::string url_;
  const Tick tick_;
  const Settings settings_ = Settings::from_environment();
  int made_ = 0;
  int failed_ = 0;
};

}  // namespace paceline::remote
