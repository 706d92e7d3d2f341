"""Text generation over HTTP, with the routes of OpenAI's API and a chat page."""
