"""Tables, time stamps and lines of text as series."""
