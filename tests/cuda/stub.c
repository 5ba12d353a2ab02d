/* A CUDA runtime and driver that do nothing and always succeed: one device, without memory.
 *
 * Loaded before torch's libraries (LD_PRELOAD), under the name libcuda.so.1. torch's device guards, streams and
 * events then work on a machine without a GPU; tensors have no content (FakeTensorMode), so no kernel runs.
 */
#include <stddef.h>

typedef int Status;
#define GIB (1UL << 30)

Status cudaGetDevice(int *device) { *device = 0; return 0; }
Status cudaSetDevice(int device) { return 0; }
Status cudaGetDeviceCount(int *count) { *count = 1; return 0; }
Status cudaGetLastError(void) { return 0; }
Status cudaPeekAtLastError(void) { return 0; }
Status cudaDeviceSynchronize(void) { return 0; }
Status cudaStreamSynchronize(void *stream) { return 0; }
Status cudaDriverGetVersion(int *version) { *version = 13000; return 0; }

/* Attributes 75 and 76 are the compute capability: 9.0 is Hopper. */
Status cudaDeviceGetAttribute(int *value, int attribute, int device)
{
    *value = attribute == 75 ? 9 : attribute == 76 ? 0 : 1;
    return 0;
}
Status cudaStreamIsCapturing(void *stream, int *status) { *status = 0; return 0; }
Status cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; return 0; }
Status cudaStreamCreateWithPriority(void **stream, unsigned flags, int priority) { *stream = (void *)16; return 0; }
Status cudaStreamGetPriority(void *stream, int *priority) { *priority = 0; return 0; }
Status cudaStreamWaitEvent(void *stream, void *event, unsigned flags) { return 0; }
Status cudaStreamQuery(void *stream) { return 0; }
Status cudaEventCreateWithFlags(void **event, unsigned flags) { *event = (void *)16; return 0; }
Status cudaEventRecord(void *event, void *stream) { return 0; }
Status cudaEventSynchronize(void *event) { return 0; }
Status cudaEventQuery(void *event) { return 0; }
Status cudaEventDestroy(void *event) { return 0; }
Status cudaFree(void *memory) { return 0; }
Status cudaMemGetInfo(size_t *free, size_t *total) { *free = 100 * GIB; *total = 139 * GIB; return 0; }
Status cudaThreadExchangeStreamCaptureMode(int *mode) { return 0; }

Status cuInit(unsigned flags) { return 0; }
Status cuDriverGetVersion(int *version) { *version = 13000; return 0; }
Status cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { *flags = 0; *active = 1; return 0; }
