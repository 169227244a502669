// Makes XRay call a handler that does nothing, or its flight data recorder, which the environment
// variable `XRAY_RECORD` asks for and whose options it has; with `XRAY_OFF` it calls nothing.

#include <stdint.h>
#include <stdlib.h>

// Functions of XRay's runtime. All but the first return an enumeration.
int __xray_set_handler(void (*handler)(int32_t function, int kind));
int __xray_patch(void);
int __xray_log_select_mode(const char *mode);
int __xray_log_init_mode(const char *mode, const char *options);
int __xray_log_finalize(void);
int __xray_log_flushLog(void);

static const char *options;

static void nothing(int32_t function, int kind)
{
	(void)function;
	(void)kind;
}

__attribute__((constructor)) static void start(void)
{
	if (getenv("XRAY_OFF"))
		return;
	options = getenv("XRAY_RECORD");
	if (options) {
		__xray_log_select_mode("xray-fdr");
		__xray_log_init_mode("xray-fdr", options);
	} else {
		__xray_set_handler(nothing);
	}
	__xray_patch();
}

__attribute__((destructor)) static void end(void)
{
	if (!options)
		return;
	__xray_log_finalize();
	__xray_log_flushLog();
}
