#include "curl_library.h"

// The header checks the types of options by macros of the functions' names.
#undef curl_easy_setopt
#undef curl_easy_getinfo

namespace paceline::remote {

CurlLibrary::CurlLibrary() : library_("libcurl, which files on other hosts need,", {"libcurl.so.4"}) {
  library_.find("curl_easy_init", &easy_init);
  library_.find("curl_easy_cleanup", &easy_cleanup);
  library_.find("curl_easy_reset", &easy_reset);
  library_.find("curl_easy_perform", &easy_perform);
  library_.find("curl_easy_strerror", &easy_strerror);
  library_.find("curl_slist_append", &slist_append);
  library_.find("curl_slist_free_all", &slist_free_all);
  library_.find("curl_getdate", &getdate);
  library_.find("curl_easy_setopt", &easy_setopt);
  library_.find("curl_easy_getinfo", &easy_getinfo);
  decltype(curl_global_init)* global_init = nullptr;
  library_.find("curl_global_init", &global_init);
  if (const CURLcode code = global_init(CURL_GLOBAL_DEFAULT); code != CURLE_OK)
    throw NotAvailable(str("libcurl cannot be used: ", easy_strerror(code)));
}

const CurlLibrary& CurlLibrary::get() {
  static const CurlLibrary* const library = new CurlLibrary;  // threads may use it at exit
  return *library;
}

}  // namespace paceline::remote
