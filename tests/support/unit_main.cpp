#define BOOST_TEST_MODULE meshard
#include <boost/test/unit_test.hpp>
