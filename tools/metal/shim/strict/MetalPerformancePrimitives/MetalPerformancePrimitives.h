#include "../../strict_tensor.h"
