"""Operations on sessions, and what is streamed of them."""
