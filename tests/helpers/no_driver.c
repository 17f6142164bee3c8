/* Stands in for NVIDIA's driver where a machine has none, so that MXNet's builds for GPUs can be imported: what they ask
   of libcuda.so.1, which answers that there is no device. For tests only: scripts/test --cuda compiles it. */
enum { NO_DEVICE = 100 /* CUDA_ERROR_NO_DEVICE */, DRIVER_VERSION = 11080 };

#define ANSWERS_NO_DEVICE(name) int name(void) { return NO_DEVICE; }

ANSWERS_NO_DEVICE(cuInit)
ANSWERS_NO_DEVICE(cuDeviceGet)
ANSWERS_NO_DEVICE(cuDevicePrimaryCtxRetain)
ANSWERS_NO_DEVICE(cuGraphKernelNodeGetParams)
ANSWERS_NO_DEVICE(cuGraphNodeGetType)
ANSWERS_NO_DEVICE(cuLaunchKernel)
ANSWERS_NO_DEVICE(cuModuleGetFunction)
ANSWERS_NO_DEVICE(cuModuleLoadData)
ANSWERS_NO_DEVICE(cuModuleLoadDataEx)
ANSWERS_NO_DEVICE(cuModuleUnload)

int cuGetErrorString(int error, const char **text) {
    (void)error;
    *text = "no CUDA-capable device is detected";
    return 0;
}

int cuDriverGetVersion(int *version) {
    *version = DRIVER_VERSION;
    return 0;
}

int cuDeviceGetCount(int *count) {
    *count = 0;
    return NO_DEVICE;
}
