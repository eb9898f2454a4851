#include <paceline/transport.h>

#include <cstring>

#include "transport/transport_setting.h"
#include "transport_catalog.h"

namespace paceline {

Frame Frame::copy_of(const void* data, std::size_t size) {
  const std::shared_ptr<std::byte[]> bytes(new std::byte[size]);
  if (size > 0) std::memcpy(bytes.get(), data, size);
  return {bytes, bytes.get(), size};
}

Frame Frame::of(std::string text) {
  const auto owner = std::make_shared<const std::string>(std::move(text));
  return {owner, reinterpret_cast<const std::byte*>(owner->data()), owner->size()};
}

std::unique_ptr<Transport> make_transport(const Spec& spec) {
  std::unique_ptr<Transport> transport = transport_catalog().at(spec.name)(spec.options);
  spec.options.reject_unknown(spec.name);
  return transport;
}

TransportSetting TransportSetting::parse(const std::string& text) {
  TransportSetting setting{Spec::parse(text)};
  transport_catalog().at(setting.spec.name);
  return setting;
}

}  // namespace paceline
