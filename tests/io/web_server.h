#pragma once
// A web server in the test's process, which a test can have fail in any way.

#include <gtest/gtest.h>

#include <paceline/error.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "fixtures.h"

namespace paceline::test {

struct WebRequest {
  std::string method = {};  // "GET"
  std::string path = {};    // with the query, without the first slash
  std::string range = {};   // "bytes=5-"; "" for the whole file
  std::string body = {};
  int count = 0;  // of requests for this path so far, with this one
};

struct WebReply {
  int status = 200;
  std::string headers;  // lines that end in \r\n
  std::string body;
  std::size_t cut = std::string::npos;  // bytes of the body after which the connection ends
};

// Serves the files of a folder. Each request has a connection and a thread of its own.
class WebServer {
 public:
  // May change the reply that the file would be; may block.
  using Change = std::function<void(const WebRequest& request, WebReply& reply)>;

  explicit WebServer(std::string root, Change change = {}) : root_(std::move(root)), change_(std::move(change)) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(listener_, 64) != 0 ||
        getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0)
      ADD_FAILURE() << "the server cannot listen";
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { accept_all(); });
  }
  ~WebServer() {
    shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    for (std::thread& thread : threads_) thread.join();
    close(listener_);
  }
  WebServer(const WebServer&) = delete;
  WebServer& operator=(const WebServer&) = delete;

  std::string url(const std::string& path) const { return str("http://127.0.0.1:", port_, '/', path); }
  // Requests whose path ends so.
  int requests(std::string_view ending = "") const {
    const std::lock_guard lock(mutex_);
    int sum = 0;
    for (const auto& [path, count] : counts_) sum += path.ends_with(ending) ? count : 0;
    return sum;
  }
  // Bytes of bodies that were sent.
  std::uint64_t bytes() const {
    const std::lock_guard lock(mutex_);
    return bytes_;
  }

 private:
  void accept_all() {
    for (;;) {
      const int connection = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (connection < 0) return;
      threads_.emplace_back([this, connection] {
        serve(connection);
        close(connection);
      });
    }
  }

  void serve(int connection) {
    std::string head;
    char byte = 0;
    while (!head.ends_with("\r\n\r\n") && recv(connection, &byte, 1, 0) == 1) head += byte;
    if (!head.ends_with("\r\n\r\n")) return;
    WebRequest request;
    request.method = head.substr(0, head.find(' '));
    const std::size_t begin = head.find('/') + 1;
    request.path = head.substr(begin, head.find(' ', begin) - begin);
    std::string validator, length = "0";
    for (const auto& [name, value] : {std::pair<const char*, std::string*>{"\r\nRange: ", &request.range},
                                      {"\r\nIf-Range: ", &validator},
                                      {"\r\nContent-Length: ", &length}}) {
      const std::size_t at = head.find(name);
      if (at == std::string::npos) continue;
      const std::size_t from = at + std::string_view(name).size();
      *value = head.substr(from, head.find('\r', from) - from);
    }
    request.body.resize(std::stoull(length));
    for (std::size_t got = 0; got < request.body.size();) {
      const ssize_t more = recv(connection, request.body.data() + got, request.body.size() - got, 0);
      if (more <= 0) return;
      got += static_cast<std::size_t>(more);
    }
    {
      const std::lock_guard lock(mutex_);
      request.count = ++counts_[request.path];
    }
    WebReply reply = reply_to(request, validator);
    if (change_) change_(request, reply);
    const std::string start =
        str("HTTP/1.1 ", reply.status, " x\r\nConnection: close\r\nContent-Length: ", reply.body.size(), "\r\n",
            reply.headers, "\r\n");
    const std::string sent = reply.body.substr(0, std::min(reply.cut, reply.body.size()));
    {
      const std::lock_guard lock(mutex_);
      bytes_ += sent.size();
    }
    send_all(connection, start + sent);
  }

  WebReply reply_to(const WebRequest& request, const std::string& validator) const {
    WebReply reply;
    const std::string path = root_ + '/' + request.path;
    if (!std::filesystem::is_regular_file(path)) return {404, "", "no such file"};
    reply.body = read_all(path);
    const std::string tag = str('"', std::hash<std::string>()(reply.body), '"');
    reply.headers = str("ETag: ", tag, "\r\n");
    std::size_t first = 0, last = reply.body.size() - 1;
    if (request.range.empty() || (!validator.empty() && validator != tag)) return reply;
    const int parts = std::sscanf(request.range.c_str(), "bytes=%zu-%zu", &first, &last);
    if (parts < 1 || first >= reply.body.size()) return {416, "", ""};
    last = std::min(last, reply.body.size() - 1);
    reply.status = 206;
    reply.headers += str("Content-Range: bytes ", first, '-', last, '/', reply.body.size(), "\r\n");
    reply.body = reply.body.substr(first, last - first + 1);
    return reply;
  }

  static void send_all(int connection, std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(connection, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
  }

  const std::string root_;
  const Change change_;
  int listener_ = -1;
  int port_ = 0;
  std::thread acceptor_;
  std::vector<std::thread> threads_;  // of the acceptor, until it has ended
  mutable std::mutex mutex_;
  std::map<std::string, int> counts_;
  std::uint64_t bytes_ = 0;
};

}  // namespace paceline::test
