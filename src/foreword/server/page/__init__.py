"""The page that the server shows: its parts as files, and how they become one."""
