/* Files that must not outlive the process: removed when SIGINT, SIGTERM or SIGHUP ends it. For temporary files beside
 * an output. Up to 8 at a time; calls come from one thread, the signal may come to any. */
#ifndef LATHE_SIGNAL_CLEANUP_H
#define LATHE_SIGNAL_CLEANUP_H

/* From now on a signal that ends the process removes `path` first, if it is there. To be called before the file is
 * made. The text is borrowed until lathe_keep_on_signal. A signal that the program ignores or handles itself stays so.
 */
void lathe_remove_on_signal(char *path);
/* Ends that, after the file was removed or got its final name. A path that is not watched is no error. */
void lathe_keep_on_signal(const char *path);
#endif
