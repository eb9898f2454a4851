// What every test includes, precompiled once for each test program.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../../tools/cmake/precompiled.h"
