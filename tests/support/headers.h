// What nearly all tests include; precompiled (tests/CMakeLists.txt).
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "overlace/error.h"
#include "overlace/schedule.h"
#include "src/base/format.h"
#include "src/base/status.h"
