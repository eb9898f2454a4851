//   signature := hex(HMAC(key, "AWS4-HMAC-SHA256\n" time "\n" scope "\n" hex(SHA256(request))))
//   key       := HMAC(HMAC(HMAC(HMAC("AWS4" secret, day), region), "s3"), "aws4_request")
//   scope     := day "/" region "/s3/aws4_request"
//   request   := method "\n" path "\n" query "\n" {header ":" value "\n"}* "\n" names "\n" body_sha256
//   names     := header names, sorted, with ";" between them

#include "s3_signature.h"

#include <paceline/error.h>

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>

#include "url.h"

namespace paceline::remote {
namespace {

constexpr const char* kAlgorithm = "AWS4-HMAC-SHA256";

std::string hex(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return text;
}

std::string taken(const std::array<unsigned char, EVP_MAX_MD_SIZE>& digest, unsigned size) {
  return {reinterpret_cast<const char*>(digest.data()), size};
}

std::string hmac(std::string_view key, std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned size = 0;
  if (!HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(text.data()),
            text.size(), digest.data(), &size))
    throw NotAvailable("OpenSSL makes no HMAC with SHA-256, which s3:// needs");
  return taken(digest, size);
}

}  // namespace

std::string sha256_hex(std::string_view bytes) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned size = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size, EVP_sha256(), nullptr) != 1)
    throw NotAvailable("OpenSSL makes no SHA-256, which files elsewhere need");
  return hex(taken(digest, size));
}

std::string canonical_query(const std::map<std::string, std::string>& query) {
  std::map<std::string, std::string> encoded;  // sorted by what is sent
  for (const auto& [name, value] : query) encoded[percent_encoded(name)] = percent_encoded(value);
  std::string text;
  for (const auto& [name, value] : encoded) text += str(text.empty() ? "" : "&", name, '=', value);
  return text;
}

std::string authorization(const ToSign& request, const Credentials& credentials) {
  const std::string day = request.time.substr(0, 8);
  const std::string scope = str(day, '/', request.region, "/s3/aws4_request");
  std::string headers, names;
  for (const auto& [name, value] : request.headers) {
    headers += str(name, ':', value, '\n');
    names += (names.empty() ? "" : ";") + name;
  }
  const std::string canonical = str(request.method, '\n', request.path, '\n', canonical_query(request.query), '\n',
                                    headers, '\n', names, '\n', request.body_sha256);
  const std::string text = str(kAlgorithm, '\n', request.time, '\n', scope, '\n', sha256_hex(canonical));
  std::string key = "AWS4" + credentials.secret;
  for (const std::string_view part : {std::string_view(day), std::string_view(request.region), std::string_view("s3"),
                                      std::string_view("aws4_request")})
    key = hmac(key, part);
  return str(kAlgorithm, " Credential=", credentials.key_id, '/', scope, ",SignedHeaders=", names,
             ",Signature=", hex(hmac(key, text)));
}

}  // namespace paceline::remote
