#include <paceline/catalog.h>
#include <paceline/transport.h>

#include <cstring>

namespace paceline {

std::unique_ptr<Transport> make_inproc_transport(const Options& options);
std::unique_ptr<Transport> make_tcp_transport(const Options& options);

Frame Frame::copy_of(const void* data, std::size_t size) {
  const std::shared_ptr<std::byte[]> bytes(new std::byte[size]);
  if (size > 0) std::memcpy(bytes.get(), data, size);
  return {bytes, bytes.get(), size};
}

Frame Frame::of(std::string text) {
  const auto owner = std::make_shared<const std::string>(std::move(text));
  return {owner, reinterpret_cast<const std::byte*>(owner->data()), owner->size()};
}

}  // namespace paceline
