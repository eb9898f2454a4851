#include <paceline/detail/tf32.h>
#include <paceline/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace paceline::detail {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(Tf32, IsTakenOnRequestOnly) {
  EXPECT_FALSE(parse_tf32(nullptr));
  EXPECT_FALSE(parse_tf32("0"));
  EXPECT_TRUE(parse_tf32("1"));
  for (const char* wrong : {"", "yes", "01"})
    EXPECT_THAT([=] { parse_tf32(wrong); },
                ThrowsMessage<InvalidArgument>(HasSubstr(str("PACELINE_TF32 is '", wrong, "', expected 0 or 1"))));
}

}  // namespace
}  // namespace paceline::detail
