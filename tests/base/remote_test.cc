#include <paceline/detail/remote.h>
#include <paceline/error.h>
#include <paceline/remote_path.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <random>

#include "remote/http.h"
#include "remote/s3.h"
#include "remote/s3_signature.h"
#include "remote/settings.h"
#include "remote/url.h"

namespace paceline::remote {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

// ---- signatures: the examples of "Signature Calculations for the Authorization Header" in Amazon's S3 reference

const Credentials kExample{"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", ""};

ToSign example(const std::string& method, const std::string& path, const std::string& body) {
  ToSign sign{.method = method,
              .path = path,
              .query = {},
              .headers = {{"host", "examplebucket.s3.amazonaws.com"},
                          {"x-amz-content-sha256", sha256_hex(body)},
                          {"x-amz-date", "20130524T000000Z"}},
              .body_sha256 = sha256_hex(body),
              .time = "20130524T000000Z",
              .region = "us-east-1"};
  return sign;
}

TEST(S3Signature, OfAGetWithARange) {
  ToSign sign = example("GET", "/test.txt", "");
  sign.headers["range"] = "bytes=0-9";
  EXPECT_EQ(authorization(sign, kExample),
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"
            "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,"
            "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
}

TEST(S3Signature, OfAPut) {
  ToSign sign = example("PUT", "/test%24file.text", "Welcome to Amazon S3.");
  sign.headers["date"] = "Fri, 24 May 2013 00:00:00 GMT";
  sign.headers["x-amz-storage-class"] = "REDUCED_REDUNDANCY";
  EXPECT_THAT(authorization(sign, kExample),
              EndsWith("Signature=98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"));
}

TEST(S3Signature, OfQueries) {
  ToSign sign = example("GET", "/", "");
  sign.query = {{"lifecycle", ""}};
  EXPECT_THAT(authorization(sign, kExample),
              EndsWith("Signature=fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"));
  sign.query = {{"prefix", "J"}, {"max-keys", "2"}};
  EXPECT_THAT(authorization(sign, kExample),
              EndsWith("Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"));
}

// ---- places

TEST(S3Place, IsABucketAndAKey) {
  const S3Place place = S3Place::parse("s3://my.bucket/a folder/x=1?.rec");
  EXPECT_EQ(place.bucket, "my.bucket");
  EXPECT_EQ(place.key, "a folder/x=1?.rec");
  for (const char* wrong : {"s3://", "s3://bucket", "s3://bucket/", "s3:///key", "s3://b@d/key", "s3://a?b/key"})
    EXPECT_THROW(S3Place::parse(wrong), InvalidArgument) << wrong;
}

TEST(Urls, AreShownWithoutSecrets) {
  EXPECT_EQ(shown("https://user:secret@host:1/a/b?X-Amz-Signature=secret"), "https://host:1/a/b");
  EXPECT_EQ(shown("http://host/a@b#c"), "http://host/a@b");
  EXPECT_EQ(shown("http://user:se/cret@host/a"), "http://user:se/cret@host/a") << "a slash ends the host";
  EXPECT_EQ(shown("s3://bucket/a?b@c"), "s3://bucket/a?b@c");
  EXPECT_EQ(shown("s3://key:secret@bucket/a"), "s3://bucket/a");
  EXPECT_EQ(shown("s3://bucket/a\n\xff"), "s3://bucket/a??");
}

TEST(Urls, AreJoined) {
  EXPECT_EQ(detail::join_url("https://host/set", "a b/50%.rec"), "https://host/set/a%20b/50%25.rec");
  EXPECT_EQ(detail::join_url("s3://bucket/set", "a b/50%.rec"), "s3://bucket/set/a b/50%.rec");
  EXPECT_EQ(detail::join_url("https://host/set", "/etc/passwd"), "https://host/set//etc/passwd");
}

TEST(Paths, OfUnknownSchemesAreRefused) {
  for (const char* url : {"s3://bucket/a", "http://host/a", "https://host/a"}) EXPECT_TRUE(is_remote(url));
  for (const char* path : {"", "a", "/a://b", "./gs://b", "s3:/b", "s3:", "://a", "3s://a", "a b://c"})
    EXPECT_FALSE(is_remote(path)) << path;
  for (const auto& [url, why] : {std::pair{"gs://bucket/run", "'gs://bucket/run' is no place that can be read"},
                                 {"S3://bucket/run", "known are s3://"},
                                 {"x+y.z-1://host", "known are s3://"},
                                 {"gs://key:secret@bucket/a", "'gs://bucket/a' is no place"},
                                 {"file:///a", "write the path without file://"}}) {
    try {
      is_remote(url);
      ADD_FAILURE() << url;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr(why));
    }
  }
}

TEST(Paths, AreRedactedWhereTheyAreUrls) {
  EXPECT_EQ(redacted("https://user:secret@host/a?token=secret"), "https://host/a");
  EXPECT_EQ(redacted("user:secret@host/a?b"), "user:secret@host/a?b");
  EXPECT_THROW(redacted("gs://bucket/a"), InvalidArgument);
}

TEST(Xml, GivesWhatIsThere) {
  EXPECT_EQ(xml_text("<Error><Code>NoSuchKey</Code></Error>", "Code"), "NoSuchKey");
  for (const char* broken : {"", "<Code>", "<Code", "</Code>", "</Code><Code>", "<Code/>", "<code>x</code>"})
    EXPECT_EQ(xml_text(broken, "Code"), "") << broken;
}

TEST(Dates, OfServersAreRead) {
  EXPECT_EQ(seconds_of_date("Fri, 24 May 2013 00:00:00 GMT"), 1369353600);
  for (const char* wrong : {"", "never", "99999999999999999999999999", "Fri, 99 Foo"})
    EXPECT_EQ(seconds_of_date(wrong), -1) << wrong;
}

// ---- credentials

TEST(Profiles, AreReadBySection) {
  constexpr const char* kText =
      "# comment\nkey = outside\n[ default ]\r\n key=first \r\nkey = second\n[profile other]\nkey = 1=2\n[broken\nkey "
      "= b";
  EXPECT_EQ(ini_value(kText, "default", "key"), "first");
  EXPECT_EQ(ini_value(kText, "profile other", "key"), "1=2");
  EXPECT_EQ(ini_value(kText, "default", "missing"), "");
  EXPECT_EQ(ini_value(kText, "nobody", "key"), "");
}

// The variables of AWS's tools as they are in a test, and files of its own.
class S3Environment : public testing::Test {
 protected:
  S3Environment() {
    std::string name = testing::TempDir() + "paceline-aws-XXXXXX";
    if (mkdtemp(name.data())) folder_ = name;
    for (const char* name : kNames) unsetenv(name);
    setenv("AWS_SHARED_CREDENTIALS_FILE", (folder_ + "/credentials").c_str(), 1);
    setenv("AWS_CONFIG_FILE", (folder_ + "/config").c_str(), 1);
  }
  ~S3Environment() override {
    for (const char* name : kNames) unsetenv(name);
    for (const char* file : {"/credentials", "/config"}) std::remove((folder_ + file).c_str());
    std::remove(folder_.c_str());
  }
  void write(const std::string& file, const std::string& text) const { std::ofstream(folder_ + "/" + file) << text; }

  static constexpr const char* kNames[] = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY",       "AWS_SESSION_TOKEN",
                                           "AWS_REGION",        "AWS_DEFAULT_REGION",          "AWS_ENDPOINT_URL_S3",
                                           "AWS_ENDPOINT_URL",  "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE",
                                           "AWS_PROFILE"};
  std::string folder_;
};

TEST_F(S3Environment, VariablesComeBeforeProfiles) {
  write("credentials",
        "[default]\naws_access_key_id = A\naws_secret_access_key = B\n"
        "[p]\naws_access_key_id = C\naws_secret_access_key = D\naws_session_token = E\n");
  write("config", "[default]\nregion = eu-west-1\n[profile p]\nregion = eu-west-2\nendpoint_url = http://there:1\n");
  S3Settings settings = S3Settings::from_environment();
  ASSERT_TRUE(settings.credentials);
  EXPECT_EQ(settings.credentials->key_id + settings.credentials->secret + settings.credentials->token, "AB");
  EXPECT_EQ(settings.region, "eu-west-1");
  setenv("AWS_PROFILE", "p", 1);
  settings = S3Settings::from_environment();
  EXPECT_EQ(settings.credentials->key_id + settings.credentials->secret + settings.credentials->token, "CDE");
  EXPECT_EQ(settings.region + settings.endpoint, "eu-west-2http://there:1");
  setenv("AWS_ACCESS_KEY_ID", "F", 1);
  EXPECT_FALSE(S3Settings::from_environment().credentials) << "half of what the variables should say";
  setenv("AWS_SECRET_ACCESS_KEY", "G", 1);
  setenv("AWS_REGION", "r", 1);
  settings = S3Settings::from_environment();
  EXPECT_EQ(settings.credentials->key_id + settings.credentials->secret + settings.credentials->token, "FG");
  EXPECT_EQ(settings.region, "r");
}

TEST_F(S3Environment, WithoutCredentialsSaysWhereTheyBelong) {
  try {
    s3_request("GET", "s3://bucket/key");
    FAIL();
  } catch (const IoError& error) {
    EXPECT_THAT(error.what(), HasSubstr("no credentials for s3://bucket/key"));
    EXPECT_THAT(error.what(), HasSubstr(folder_ + "/credentials"));
    EXPECT_THAT(error.what(), HasSubstr("AWS_SECRET_ACCESS_KEY"));
  }
}

TEST_F(S3Environment, AddressesBuckets) {
  setenv("AWS_ACCESS_KEY_ID", "F", 1);
  setenv("AWS_SECRET_ACCESS_KEY", "G", 1);
  setenv("AWS_REGION", "eu-x", 1);
  EXPECT_EQ(s3_request("GET", "s3://bucket/a b+c").url, "https://bucket.s3.eu-x.amazonaws.com/a%20b%2Bc");
  EXPECT_EQ(s3_request("GET", "s3://my.bucket/k").url, "https://s3.eu-x.amazonaws.com/my.bucket/k");
  setenv("AWS_ENDPOINT_URL", "http://here:80/", 1);
  const HttpRequest request = s3_request("PUT", "s3://bucket/k", "body", {{"uploadId", "a/b"}, {"partNumber", "1"}});
  EXPECT_EQ(request.url, "http://here:80/bucket/k?partNumber=1&uploadId=a%2Fb");
  EXPECT_THAT(request.headers, testing::Contains("host: here"));
  for (const char* wrong : {"here", "ftp://here", "http://user:secret@here"}) {
    setenv("AWS_ENDPOINT_URL", wrong, 1);
    try {
      s3_request("GET", "s3://bucket/k");
      FAIL() << wrong;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), testing::Not(HasSubstr("secret")));
    }
  }
}

TEST(RemoteSettings, AreChecked) {
  for (const char* wrong : {"0", "-1", "x", "1x", "99999999999"}) {
    setenv("PACELINE_REMOTE_STALL", wrong, 1);
    EXPECT_THROW(Settings::from_environment(), InvalidArgument) << wrong;
  }
  unsetenv("PACELINE_REMOTE_STALL");
}

// ---- what a hostile server may send

TEST(Texts, OfAnyBytesAreHarmless) {
  const std::uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  constexpr std::string_view kPieces[] = {"<Code>", "</Code>", "<",       ">",   "\n",   "[",
                                          "]",      "=",       "default", "key", "\xff", "//"};
  for (int round = 0; round < 5000; ++round) {
    std::string text;
    for (auto left = random() % 20; left > 0; --left)
      text += random() % 4 ? std::string(kPieces[random() % std::size(kPieces)])
                           : std::string(1, static_cast<char>(random()));
    EXPECT_LE(xml_text(text, "Code").size(), text.size());
    EXPECT_LE(ini_value(text, "default", "key").size(), text.size());
    for (const char c : shown(text) + printable(text, 10)) EXPECT_TRUE(c >= ' ' && c <= '~');
    seconds_of_date(text.substr(0, text.find('\0')));
  }
}

}  // namespace
}  // namespace paceline::remote
