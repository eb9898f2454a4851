#pragma once
// Errors. Caller mistakes and failures outside the process throw a subclass of Error; broken invariants are assert().
// Every message is one sentence that says what was wrong and, where it helps, what is allowed or what to do.

#include <sstream>
#include <stdexcept>
#include <string>

namespace paceline {

// The base of every exception of the library.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The caller passed something that can never work: a shape, a name, an option, a state.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

// The feature exists, but not in this build or on this machine (a GPU, an optional library).
class NotAvailable : public Error {
 public:
  using Error::Error;
};

// A host or a device has no memory left for an array; the message says how much was asked for.
class OutOfMemory : public Error {
 public:
  using Error::Error;
};

// An accelerator failed: a kernel faulted, or the device is gone. This process cannot use that device any more. It can
// use the others.
class DeviceError : public Error {
 public:
  using Error::Error;
};

// A peer or the network failed: lost, refused, unreachable.
class NetworkError : public Error {
 public:
  using Error::Error;
};

// A deadline passed; the message names who is missing.
class Timeout : public NetworkError {
 public:
  using NetworkError::NetworkError;
};

// A file or the operating system's I/O failed: missing, unreadable, disk full.
class IoError : public Error {
 public:
  using Error::Error;
};

// Bytes that do not follow their format; the message names file and offset, or the peer.
class Corrupt : public Error {
 public:
  using Error::Error;
};

// The parts, joined by operator<<: str("axis ", axis, " is outside").
template <class... Parts>
std::string str(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// Throws InvalidArgument with the joined parts unless `condition` holds.
template <class... Parts>
void require(bool condition, const Parts&... parts) {
  if (!condition) throw InvalidArgument(str(parts...));
}

}  // namespace paceline
