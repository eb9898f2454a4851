#include "refusal.h"

#include <message.pb.h>
#include <paceline/error.h>

namespace paceline {
namespace {

// Numbers on the wire: never reorder.
enum class ErrorType : std::uint32_t {
  kError,
  kInvalidArgument,
  kNotAvailable,
  kOutOfMemory,
  kNetworkError,
  kTimeout,
  kIoError,
  kCorrupt
};

template <class E>
bool is(const std::exception& error) {
  return dynamic_cast<const E*>(&error) != nullptr;
}

ErrorType type_of(const std::exception& error) {
  if (is<InvalidArgument>(error)) return ErrorType::kInvalidArgument;
  if (is<NotAvailable>(error)) return ErrorType::kNotAvailable;
  if (is<OutOfMemory>(error) || is<std::bad_alloc>(error)) return ErrorType::kOutOfMemory;
  if (is<Timeout>(error)) return ErrorType::kTimeout;
  if (is<NetworkError>(error)) return ErrorType::kNetworkError;
  if (is<IoError>(error)) return ErrorType::kIoError;
  if (is<Corrupt>(error)) return ErrorType::kCorrupt;
  return ErrorType::kError;
}

}  // namespace

std::string refusal_of(const std::exception& reason, const std::string& before) {
  proto::Refusal refusal;
  refusal.set_type(static_cast<std::uint32_t>(type_of(reason)));
  refusal.set_text(before + reason.what());
  return refusal.SerializeAsString();
}

std::exception_ptr error_of(const std::string& body) {
  proto::Refusal refusal;
  if (!refusal.ParseFromString(body))
    return std::make_exception_ptr(Corrupt("[message] a refusal that cannot be read"));
  const std::string& text = refusal.text();
  switch (static_cast<ErrorType>(refusal.type())) {
    case ErrorType::kInvalidArgument: return std::make_exception_ptr(InvalidArgument(text));
    case ErrorType::kNotAvailable: return std::make_exception_ptr(NotAvailable(text));
    case ErrorType::kOutOfMemory: return std::make_exception_ptr(OutOfMemory(text));
    case ErrorType::kNetworkError: return std::make_exception_ptr(NetworkError(text));
    case ErrorType::kTimeout: return std::make_exception_ptr(Timeout(text));
    case ErrorType::kIoError: return std::make_exception_ptr(IoError(text));
    case ErrorType::kCorrupt: return std::make_exception_ptr(Corrupt(text));
    case ErrorType::kError: break;
  }
  return std::make_exception_ptr(Error(text));
}

}  // namespace paceline
