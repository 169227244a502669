/* A function that tells of a runtime that walks frames, in libjvm.so; in _greenlet.so its name tells of what it does. */
#ifdef WALKS
int JNI_CreateJavaVM(void) { return 0; }
#endif
int greenlet_part(void) { return 0; }
