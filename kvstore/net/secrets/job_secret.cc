#include "secrets/job_secret.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <paceline/detail/descriptor.h>
#include <paceline/error.h>
#include <paceline/mutex.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <system_error>

namespace paceline {
namespace {

constexpr int kPatienceMilliseconds = 10000;  // how long a reader waits for the writer of the pipe
constexpr std::size_t kLongestText = 256;

using detail::Descriptor;

// Reads up to the end of the file. Stops earlier when the text is longer than any secret.
std::string read_all(int descriptor, const std::string& where) {
  std::string text;
  char part[kLongestText];
  while (text.size() <= kLongestText) {
    pollfd ready = {descriptor, POLLIN, 0};
    const int events = poll(&ready, 1, kPatienceMilliseconds);
    require(events != 0, "[cluster] ", where, " gives no key: nobody has written one within ",
            kPatienceMilliseconds / 1000, " s");
    const ssize_t count = events < 0 ? -1 : read(descriptor, part, sizeof(part));
    if (count < 0 && errno == EINTR) continue;
    require(count >= 0, "[cluster] ", where, " cannot be read: ", std::generic_category().message(errno));
    if (count == 0) break;
    text.append(part, static_cast<std::size_t>(count));
  }
  return text;
}

int digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// No error may show the text that was read, because a part of it may be a secret.
std::string parse_secret(std::string text, const std::string& where) {
  while (!text.empty() && std::strchr(" \t\r\n", text.back())) text.pop_back();
  bool good = text.size() == 2 * kSecretBytes;
  std::string secret;
  for (std::size_t i = 0; good && i < text.size(); i += 2) {
    const int high = digit(text[i]), low = digit(text[i + 1]);
    good = high >= 0 && low >= 0;
    secret.push_back(static_cast<char>(16 * high + low));
  }
  OPENSSL_cleanse(text.data(), text.size());
  require(good, "[cluster] ", where, " does not hold a key; a key is ", 2 * kSecretBytes,
          " hexadecimal digits, such as `openssl rand -hex ", kSecretBytes, "` prints");
  return secret;
}

}  // namespace

std::string secret_in_file(const std::string& path) {
  const std::string where = "PACELINE_KEY_FILE=" + path;
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  require(file.number() >= 0, "[cluster] ", where, " cannot be opened: ", std::generic_category().message(errno));
  struct stat status = {};
  require(fstat(file.number(), &status) == 0 && S_ISREG(status.st_mode), "[cluster] ", where, " is not a file");
  require(status.st_uid == geteuid(), "[cluster] ", where, " belongs to another user; only its owner may use it");
  require((status.st_mode & (S_IRWXG | S_IRWXO)) == 0, "[cluster] ", where, " is open to other users; run `chmod 600 ",
          path, "`");
  return parse_secret(read_all(file.number(), where), where);
}

std::string inherited_secret(int descriptor) {
  static Mutex mutex;
  static std::map<int, std::string> known;
  const Lock lock(mutex);
  if (const auto found = known.find(descriptor); found != known.end()) return found->second;
  const std::string where = str("PACELINE_KEY_FD=", descriptor);
  struct stat status = {};
  require(fstat(descriptor, &status) == 0 && S_ISFIFO(status.st_mode), "[cluster] ", where,
          " is no pipe of this process; a program between the launcher and this process has closed it. Let it pass "
          "the descriptor on, or use PACELINE_KEY_FILE");
  const Descriptor pipe(descriptor);
  fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  return known[descriptor] = parse_secret(read_all(descriptor, where), where);
}

void forbid_core_dumps() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_CORE, &limit) != 0) return;
  // Where the kernel pipes core dumps to a program, it ignores a limit of 0. A limit of 1 byte prevents dumps to
  // programs and to files.
  limit.rlim_cur = limit.rlim_max == 0 ? 0 : 1;
  setrlimit(RLIMIT_CORE, &limit);
}

std::string derived_key(const std::string& secret, const std::string& purpose) {
  return code_of(secret, "paceline 1 " + purpose);
}

std::string code_of(const std::string& key, const std::string& text) {
  std::string code(kSecretBytes, '\0');
  unsigned int size = 0;
  if (!HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(text.data()),
            text.size(), reinterpret_cast<unsigned char*>(code.data()), &size) ||
      size != code.size())
    throw Error("[secrets] libcrypto cannot compute HMAC-SHA256");
  return code;
}

bool equal_in_constant_time(const std::string& a, const std::string& b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace paceline
