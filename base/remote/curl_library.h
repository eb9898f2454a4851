#pragma once
// libcurl, opened at run time: it brings 30 libraries with it, which programs without URLs need not load.

#include <paceline/detail/shared_library.h>

#include <curl/curl.h>

namespace paceline::remote {

struct CurlLibrary {
  // Throws NotAvailable. Opened once, and kept until the process ends.
  static const CurlLibrary& get();

  decltype(curl_easy_init)* easy_init = nullptr;
  decltype(curl_easy_cleanup)* easy_cleanup = nullptr;
  decltype(curl_easy_reset)* easy_reset = nullptr;
  decltype(curl_easy_perform)* easy_perform = nullptr;
  decltype(curl_easy_strerror)* easy_strerror = nullptr;
  decltype(curl_slist_append)* slist_append = nullptr;
  decltype(curl_slist_free_all)* slist_free_all = nullptr;
  decltype(curl_getdate)* getdate = nullptr;
  CURLcode (*easy_setopt)(CURL*, CURLoption, ...) = nullptr;
  CURLcode (*easy_getinfo)(CURL*, CURLINFO, ...) = nullptr;

 private:
  CurlLibrary();

  detail::SharedLibrary library_;
};

}  // namespace paceline::remote
